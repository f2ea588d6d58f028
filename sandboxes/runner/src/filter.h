/* Which system calls the box may make. */
#ifndef FILTER_H
#define FILTER_H

#include <stdbool.h>
#include <stddef.h>

/* Hold this process, and all that it starts from now on, to a program of `struct sock_filter`. It cannot be taken back.
   False where the kernel does not take it, with the reason in errno. */
bool filter_calls(const void *program, size_t length);

#endif
