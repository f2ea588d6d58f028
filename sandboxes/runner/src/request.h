/* The payload of RUN, taken apart. */
#ifndef REQUEST_H
#define REQUEST_H

#include <stdbool.h>
#include <stdint.h>

struct request {
    char **arguments, **environment; /* ended by NULL */
    char *folder, *user;             /* NULL where absent */
    uint32_t flags, time_limit_ms, head_limit, tail_limit;
};

/* False where the payload is not well formed. Free it either way. */
bool request_parse(struct request *request, const unsigned char *payload, uint32_t length);
void request_free(struct request *request);

#endif
