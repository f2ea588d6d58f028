#include "buffer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IDLE_CAPACITY = 256 << 10, EXIT_NO_MEMORY = 71 };

static void *resize(void *bytes, size_t size) {
    void *moved = realloc(bytes, size);
    if (!moved) _exit(EXIT_NO_MEMORY);
    return moved;
}

static void make_room(struct buffer *buffer, size_t more) {
    if (buffer->start) {
        memmove(buffer->bytes, buffer->bytes + buffer->start, buffer->length);
        buffer->start = 0;
    }
    size_t needed = buffer->length + more;
    if (needed <= buffer->capacity) return;
    size_t capacity = buffer->capacity ? buffer->capacity : 4096;
    while (capacity < needed) capacity *= 2;
    buffer->bytes = resize(buffer->bytes, capacity);
    buffer->capacity = capacity;
}

void buffer_append(struct buffer *buffer, const void *bytes, size_t length) {
    if (!length) return;
    if (buffer->start + buffer->length + length > buffer->capacity) make_room(buffer, length);
    memcpy(buffer->bytes + buffer->start + buffer->length, bytes, length);
    buffer->length += length;
}

void buffer_consume(struct buffer *buffer, size_t length) {
    buffer->start += length;
    buffer->length -= length;
    if (buffer->length) return;
    buffer->start = 0;
    if (buffer->capacity > IDLE_CAPACITY) buffer_free(buffer);
}

void buffer_free(struct buffer *buffer) {
    free(buffer->bytes);
    memset(buffer, 0, sizeof *buffer);
}

static void tail_grow(struct capture *capture, size_t more) {
    /* While the ring has not wrapped yet its bytes lie in order, so it can simply grow. */
    size_t wanted = capture->beyond_head + more;
    if (wanted > capture->tail_limit) wanted = capture->tail_limit;
    if (wanted <= capture->tail_capacity) return;
    size_t capacity = capture->tail_capacity ? capture->tail_capacity : 4096;
    while (capacity < wanted) capacity *= 2;
    if (capacity > capture->tail_limit) capacity = capture->tail_limit;
    capture->tail = resize(capture->tail, capacity);
    capture->tail_capacity = capacity;
}

static void tail_append(struct capture *capture, const unsigned char *bytes, size_t length) {
    if (!capture->tail_limit) {
        capture->beyond_head += length;
        return;
    }
    tail_grow(capture, length);
    if (length > capture->tail_limit) {
        size_t skipped = length - capture->tail_limit;
        capture->beyond_head += skipped;
        bytes += skipped;
        length -= skipped;
    }
    size_t at = capture->beyond_head % capture->tail_limit;
    size_t first = capture->tail_limit - at < length ? capture->tail_limit - at : length;
    memcpy(capture->tail + at, bytes, first);
    memcpy(capture->tail, bytes + first, length - first);
    capture->beyond_head += length;
}

void capture_append(struct capture *capture, const unsigned char *bytes, size_t length) {
    size_t free_head = capture->head_limit - capture->head.length;
    size_t to_head = length < free_head ? length : free_head;
    buffer_append(&capture->head, bytes, to_head);
    if (length > to_head) tail_append(capture, bytes + to_head, length - to_head);
}

uint64_t capture_omitted(const struct capture *capture) {
    return capture->beyond_head > capture->tail_limit ? capture->beyond_head - capture->tail_limit : 0;
}

void capture_copy(const struct capture *capture, struct buffer *into) {
    buffer_append(into, capture->head.bytes + capture->head.start, capture->head.length);
    if (!capture_omitted(capture)) {
        buffer_append(into, capture->tail, capture->beyond_head);
        return;
    }
    if (!capture->tail_limit) return;
    size_t oldest = capture->beyond_head % capture->tail_limit;
    buffer_append(into, capture->tail + oldest, capture->tail_limit - oldest);
    buffer_append(into, capture->tail, oldest);
}

void capture_free(struct capture *capture) {
    buffer_free(&capture->head);
    free(capture->tail);
    capture->tail = NULL;
}
