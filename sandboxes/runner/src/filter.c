#include "filter.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>

enum { INSTRUCTION_LIMIT = 4096 };

bool filter_calls(const void *program, size_t length) {
    static struct sock_filter instructions[INSTRUCTION_LIMIT];
    if (!length || length > sizeof instructions || length % sizeof *instructions) {
        errno = EINVAL;
        return false;
    }
    memcpy(instructions, program, length);
    struct sock_fprog filter = {(unsigned short)(length / sizeof *instructions), instructions};
    return !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}
