#include "drain.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "protocol.h"

static int pipes[DRAIN_LIMIT];
static size_t count;

static void forget(size_t index) {
    close(pipes[index]);
    count--;
    memmove(pipes + index, pipes + index + 1, (count - index) * sizeof *pipes);
}

void drain(int fd) {
    if (count == DRAIN_LIMIT) forget(0);
    pipes[count++] = fd;
}

size_t drain_poll(struct pollfd *polls) {
    for (size_t i = 0; i < count; i++) polls[i] = (struct pollfd){.fd = pipes[i], .events = POLLIN};
    return count;
}

static int is_finished(int fd) {
    static unsigned char nothing[CHUNK];
    ssize_t got = read(fd, nothing, sizeof nothing);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

void drain_read(const struct pollfd *polls, size_t polled) {
    for (size_t i = polled; i-- > 0;)
        if (polls[i].revents && is_finished(polls[i].fd)) forget(i);
}
