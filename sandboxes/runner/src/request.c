#include "request.h"

#include <stdlib.h>
#include <string.h>

#include "protocol.h"

struct strings {
    char **items;
    size_t count, capacity;
};

static bool push(struct strings *strings, char *item) {
    if (!item) return false;
    if (strings->count + 2 > strings->capacity) {
        size_t capacity = strings->capacity ? strings->capacity * 2 : 16;
        char **moved = realloc(strings->items, capacity * sizeof *moved);
        if (!moved) return false;
        strings->items = moved;
        strings->capacity = capacity;
    }
    strings->items[strings->count++] = item;
    strings->items[strings->count] = NULL;
    return true;
}

static bool read_number(uint32_t *into, const unsigned char *bytes, uint32_t length) {
    if (length != sizeof *into) return false;
    memcpy(into, bytes, sizeof *into);
    return true;
}

static bool read_text(char **into, const unsigned char *bytes, uint32_t length) {
    free(*into);
    *into = strndup((const char *)bytes, length);
    return *into != NULL;
}

static bool read_field(struct request *request, struct strings *arguments, struct strings *environment,
                       unsigned char tag, const unsigned char *bytes, uint32_t length) {
    switch (tag) {
        case 'a': return push(arguments, strndup((const char *)bytes, length));
        case 'e': return push(environment, strndup((const char *)bytes, length));
        case 'd': return read_text(&request->folder, bytes, length);
        case 'u': return read_text(&request->user, bytes, length);
        case 'f': return read_number(&request->flags, bytes, length);
        case 't': return read_number(&request->time_limit_ms, bytes, length);
        case 'h': return read_number(&request->head_limit, bytes, length);
        case 'l': return read_number(&request->tail_limit, bytes, length);
        default: return false;
    }
}

bool request_parse(struct request *request, const unsigned char *payload, uint32_t length) {
    memset(request, 0, sizeof *request);
    struct strings arguments = {0}, environment = {0};
    bool well_formed = true;
    while (well_formed && length) {
        uint32_t size = 0;
        if ((well_formed = length >= 5)) memcpy(&size, payload + 1, 4);
        well_formed = well_formed && size <= length - 5 &&
                      read_field(request, &arguments, &environment, payload[0], payload + 5, size);
        payload += 5 + size;
        length -= well_formed ? 5 + size : length;
    }
    if (!environment.items) environment.items = calloc(1, sizeof *environment.items);
    request->arguments = arguments.items;
    request->environment = environment.items;
    if (request->head_limit > CAPTURE_LIMIT) request->head_limit = CAPTURE_LIMIT;
    if (request->tail_limit > CAPTURE_LIMIT) request->tail_limit = CAPTURE_LIMIT;
    return well_formed && request->arguments && request->environment;
}

static void free_strings(char **strings) {
    for (char **item = strings; item && *item; item++) free(*item);
    free(strings);
}

void request_free(struct request *request) {
    free_strings(request->arguments);
    free_strings(request->environment);
    free(request->folder);
    free(request->user);
}
