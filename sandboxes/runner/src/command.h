/* A running command: its process, its streams, what it wrote. */
#ifndef COMMAND_H
#define COMMAND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "buffer.h"
#include "request.h"

struct command {
    struct command *next;
    uint32_t id, flags;
    pid_t pid;
    int in, streams[2]; /* -1 when closed */
    struct buffer input;
    bool input_ended;
    struct capture captured[2];
    uint64_t credit; /* bytes of OUT that a streamed command may still send */
    int rest;        /* bytes that it left in its pipe; -1 until they are counted, after its end */
    int64_t started_us, ended_us, deadline_us;
    bool exited, stopping, timed_out;
    int status;
};

int64_t now_us(void);

/* Start it; NULL where it cannot be started, with the reason in errno. */
struct command *command_start(uint32_t id, const struct request *request);

void command_input(struct command *command, const void *bytes, size_t length);
void command_input_end(struct command *command);
/* Write waiting input to the command and give the client credit for it. */
void command_feed(struct command *command);
/* Read what a stream has: into the capture, or to the client as far as there is credit. False where nothing is there. */
bool command_read(struct command *command, int stream);
bool command_wants_read(const struct command *command, int stream);

void command_kill(struct command *command);
void command_exited(struct command *command, int wait_status);
/* Act on the time limit. */
void command_tick(struct command *command, int64_t now);
/* When `command_tick` has something to do, 0 for never. */
int64_t command_next_tick(const struct command *command);
/* Whether nothing more will come of it. */
bool command_is_over(const struct command *command, int64_t now);

/* Send what was captured and DONE under `id`. */
void command_report(const struct command *command, uint32_t id);
/* Frees it. A stream that a daemon still holds goes on being read, into nothing: see drain.h. */
void command_free(struct command *command);

#endif
