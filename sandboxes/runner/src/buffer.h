/* Bytes that wait: a queue, and a capture that keeps the head and the tail of a stream. */
#ifndef BUFFER_H
#define BUFFER_H

#include <stddef.h>
#include <stdint.h>

struct buffer {
    unsigned char *bytes;
    size_t start, length, capacity;
};

void buffer_append(struct buffer *buffer, const void *bytes, size_t length);
void buffer_consume(struct buffer *buffer, size_t length);
void buffer_free(struct buffer *buffer);

/* The first `head_limit` bytes, then a ring of the last `tail_limit` bytes. */
struct capture {
    struct buffer head;
    unsigned char *tail;
    size_t head_limit, tail_limit, tail_capacity;
    uint64_t beyond_head; /* bytes that came after the head was full */
};

void capture_append(struct capture *capture, const unsigned char *bytes, size_t length);
uint64_t capture_omitted(const struct capture *capture);
/* Head and tail joined; the capture stays as it is. */
void capture_copy(const struct capture *capture, struct buffer *into);
void capture_free(struct capture *capture);

#endif
