/* The two ends of the wire to the client. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct frame {
    uint32_t length, id;
    uint8_t kind;
    const unsigned char *payload; /* valid until the next call */
};

/* Takes over descriptors 0 and 1, which become /dev/null. */
void wire_open(void);
int wire_in(void);
int wire_out(void);

/* Read what is there. False at the end of the stream. */
bool wire_read(void);
/* The next whole frame of what was read. A frame that is too large ends the program. */
bool wire_next(struct frame *frame);

void wire_send(uint32_t id, uint8_t kind, const void *payload, size_t length);
void wire_send_u32(uint32_t id, uint8_t kind, uint32_t value);
bool wire_has_pending(void);
/* Whether so much waits for the client that nothing more should be put before it. */
bool wire_is_full(void);
/* Write what the client takes now. False where it is gone. */
bool wire_flush(void);

#endif
