#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "buffer.h"
#include "protocol.h"

enum { FULL = 512 << 10, EXIT_PROTOCOL = 76 };

static int in, out;
static struct buffer received, pending;
static size_t taken; /* bytes of `received` that the last frame used */

static int move_away(int fd) {
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    fcntl(moved, F_SETFL, fcntl(moved, F_GETFL) | O_NONBLOCK);
    return moved;
}

void wire_open(void) {
    in = move_away(0);
    out = move_away(1);
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 2; fd++) {
        if (nothing >= 0) dup2(nothing, fd);
        else close(fd);
    }
    if (nothing > 2) close(nothing);
    if (fcntl(2, F_GETFD) < 0) dup2(0, 2);
}

int wire_in(void) { return in; }
int wire_out(void) { return out; }

bool wire_read(void) {
    static unsigned char chunk[CHUNK];
    ssize_t got = read(in, chunk, sizeof chunk);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    buffer_append(&received, chunk, (size_t)got);
    return got > 0;
}

bool wire_next(struct frame *frame) {
    buffer_consume(&received, taken);
    taken = 0;
    if (received.length < FRAME_HEADER) return false;
    const unsigned char *header = received.bytes + received.start;
    memcpy(&frame->length, header, 4);
    memcpy(&frame->id, header + 4, 4);
    frame->kind = header[8];
    if (frame->length > FRAME_LIMIT) _exit(EXIT_PROTOCOL);
    if (received.length < FRAME_HEADER + (size_t)frame->length) return false;
    frame->payload = header + FRAME_HEADER;
    taken = FRAME_HEADER + (size_t)frame->length;
    return true;
}

void wire_send(uint32_t id, uint8_t kind, const void *payload, size_t length) {
    unsigned char header[FRAME_HEADER];
    uint32_t size = (uint32_t)length;
    memcpy(header, &size, 4);
    memcpy(header + 4, &id, 4);
    header[8] = kind;
    buffer_append(&pending, header, sizeof header);
    buffer_append(&pending, payload, length);
}

void wire_send_u32(uint32_t id, uint8_t kind, uint32_t value) { wire_send(id, kind, &value, sizeof value); }

bool wire_has_pending(void) { return pending.length > 0; }
bool wire_is_full(void) { return pending.length >= FULL; }

bool wire_flush(void) {
    while (pending.length) {
        ssize_t written = write(out, pending.bytes + pending.start, pending.length);
        if (written < 0) return errno == EAGAIN || errno == EINTR;
        buffer_consume(&pending, (size_t)written);
    }
    return true;
}
