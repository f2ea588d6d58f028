/* Pipes that a daemon still writes to after its command has ended. They are read into nothing: were they closed, a server
   that the agent left running would die of SIGPIPE at its first line of log. */
#ifndef DRAIN_H
#define DRAIN_H

#include <poll.h>
#include <stddef.h>

enum { DRAIN_LIMIT = 64 };

/* Takes the descriptor; the oldest is closed where there are too many. */
void drain(int fd);
/* Fill `polls` (room for DRAIN_LIMIT); returns how many. */
size_t drain_poll(struct pollfd *polls);
void drain_read(const struct pollfd *polls, size_t count);

#endif
