#define _GNU_SOURCE
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "drain.h"
#include "protocol.h"
#include "wire.h"

enum {
    LINGER_US = 50000,       /* for output that is still in flight when the command ends */
    GIVE_UP_US = 15000000,   /* after a kill; only a process stuck in the kernel takes so long */
    EXIT_TIMED_OUT = 124,
    REST_READS = 16,         /* a pipe holds no more than so many chunks */
};

int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void close_pair(int pair[2]) {
    if (pair[0] >= 0) close(pair[0]);
    if (pair[1] >= 0) close(pair[1]);
}

/* The second stream is standard error, or the shell's state, or not there. */
static bool open_streams(uint32_t flags, int in[2], int out[2], int second[2]) {
    in[0] = in[1] = out[0] = out[1] = second[0] = second[1] = -1;
    if (pipe2(out, O_CLOEXEC)) return false;
    if ((!(flags & RUN_MERGE) || flags & RUN_STATE) && pipe2(second, O_CLOEXEC)) return false;
    if (flags & RUN_INPUT) return !pipe2(in, O_CLOEXEC);
    return (in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;
}

static pid_t start_child(const struct request *request, int in, int out, int second) {
    pid_t pid = fork();
    if (pid) return pid;
    bool merge = request->flags & RUN_MERGE;
    struct streams streams = {in, out, merge ? out : second, merge ? second : -1};
    if (request->flags & RUN_FILE) child_run_file_operation(request, streams);
    child_run_command(request, streams);
}

static int ours(int fd) {
    if (fd >= 0) fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static struct command *new_command(uint32_t id, const struct request *request) {
    struct command *command = calloc(1, sizeof *command);
    if (!command) return NULL;
    command->id = id;
    command->flags = request->flags;
    for (int stream = 0; stream < 2; stream++) {
        command->captured[stream].head_limit = request->head_limit;
        command->captured[stream].tail_limit = request->tail_limit;
    }
    if (request->flags & RUN_STATE) command->captured[1] = (struct capture){.head_limit = STATE_LIMIT};
    command->rest = -1;
    command->started_us = now_us();
    if (request->time_limit_ms) command->deadline_us = command->started_us + (int64_t)request->time_limit_ms * 1000;
    return command;
}

struct command *command_start(uint32_t id, const struct request *request) {
    int in[2], out[2], second[2];
    struct command *command = new_command(id, request);
    if (!command) return NULL;
    bool opened = open_streams(request->flags, in, out, second);
    command->pid = opened ? start_child(request, in[0], out[1], second[1]) : -1;
    if (command->pid < 0) {
        int reason = errno;
        close_pair(in), close_pair(out), close_pair(second);
        free(command);
        errno = reason;
        return NULL;
    }
    close(in[0]), close(out[1]);
    if (second[1] >= 0) close(second[1]);
    command->in = ours(in[1]);
    command->streams[0] = ours(out[0]);
    command->streams[1] = ours(second[0]);
    return command;
}

/* ---- streams -------------------------------------------------------------------------------------------------- */

static void close_input(struct command *command) {
    if (command->in >= 0) close(command->in);
    command->in = -1;
}

void command_input(struct command *command, const void *bytes, size_t length) {
    buffer_append(&command->input, bytes, length);
    command_feed(command);
}

void command_input_end(struct command *command) {
    command->input_ended = true;
    command_feed(command);
}

void command_feed(struct command *command) {
    size_t fed = 0;
    while (command->input.length) {
        size_t length = command->input.length;
        ssize_t written = (ssize_t)length; /* a command that reads no more swallows the rest */
        if (command->in >= 0) written = write(command->in, command->input.bytes + command->input.start, length);
        if (written < 0 && errno == EAGAIN) break;
        if (written < 0) {
            close_input(command);
            continue;
        }
        buffer_consume(&command->input, (size_t)written);
        fed += (size_t)written;
    }
    if (fed) wire_send_u32(command->id, CREDIT, (uint32_t)fed);
    if (!command->input.length && command->input_ended) close_input(command);
}

static void close_stream(struct command *command, int stream) {
    close(command->streams[stream]);
    command->streams[stream] = -1;
}

static bool is_streamed(const struct command *command, int stream) {
    return stream == 0 && command->flags & RUN_STREAM;
}

bool command_wants_read(const struct command *command, int stream) {
    if (command->streams[stream] < 0) return false;
    return !is_streamed(command, stream) || (command->credit && command->rest && !wire_is_full());
}

bool command_read(struct command *command, int stream) {
    static unsigned char chunk[CHUNK];
    bool streamed = is_streamed(command, stream);
    size_t room = streamed && command->credit < sizeof chunk ? (size_t)command->credit : sizeof chunk;
    if (streamed && command->rest > 0 && (size_t)command->rest < room) room = (size_t)command->rest;
    ssize_t got = read(command->streams[stream], chunk, room);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) {
        close_stream(command, stream);
    } else if (streamed) {
        command->credit -= (uint64_t)got;
        if (command->rest > 0) command->rest -= (int)got;
        wire_send(command->id, OUT, chunk, (size_t)got);
    } else {
        capture_append(&command->captured[stream], chunk, (size_t)got);
    }
    return got > 0;
}

/* What is in the pipes when the command ends belongs to it; a daemon may fill them for ever. */
static void read_rest(struct command *command) {
    for (int stream = 0; stream < 2; stream++) {
        if (is_streamed(command, stream)) continue;
        for (int reads = 0; reads < REST_READS && command->streams[stream] >= 0; reads++)
            if (!command_read(command, stream)) break;
    }
}

/* ---- its end -------------------------------------------------------------------------------------------------- */

void command_kill(struct command *command) {
    if (command->stopping) return;
    command->stopping = true; /* also one that has ended: what it streamed is taken by nobody any more */
    if (command->exited) return;
    command->deadline_us = now_us() + GIVE_UP_US;
    kill(command->pid, command->flags & RUN_FILE ? SIGKILL : SIGTERM);
    kill(command->pid, SIGCONT); /* in a box of one user the command may have stopped its supervisor */
}

void command_exited(struct command *command, int wait_status) {
    command->exited = true;
    command->status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
    if (command->timed_out) command->status = EXIT_TIMED_OUT;
    command->ended_us = now_us();
    command->deadline_us = 0;
    read_rest(command);
}

/* A daemon may hold the stream of a command, and write to it for ever; nobody else can hold that of a file operation. */
static bool is_to_be_counted(const struct command *command) {
    return command->exited && command->rest < 0 && command->flags & RUN_STREAM && !(command->flags & RUN_FILE);
}

static void count_rest(struct command *command) {
    if (command->streams[0] < 0 || ioctl(command->streams[0], FIONREAD, &command->rest)) command->rest = 0;
}

void command_tick(struct command *command, int64_t now) {
    if (is_to_be_counted(command) && now >= command->ended_us + LINGER_US) count_rest(command);
    if (!command->deadline_us || now < command->deadline_us) return;
    if (command->stopping) {
        command_exited(command, SIGKILL);
        return;
    }
    command->timed_out = true;
    command_kill(command);
}

int64_t command_next_tick(const struct command *command) {
    if (!command->exited) return command->deadline_us;
    return command->flags & RUN_STREAM && !is_to_be_counted(command) ? 0 : command->ended_us + LINGER_US;
}

bool command_is_over(const struct command *command, int64_t now) {
    if (!command->exited) return false;
    if (command->stopping && command->flags & RUN_STREAM) return true;
    /* A shell has written its state before it ended; a job that it left running only holds the descriptor. */
    bool second_over = command->streams[1] < 0 || command->flags & RUN_STATE;
    if (command->streams[0] < 0 && second_over) return true;
    /* All that was streamed is sent, however long the client takes. */
    if (command->flags & RUN_STREAM && !(command->flags & RUN_FILE)) return !command->rest;
    return !(command->flags & RUN_STREAM) && now >= command->ended_us + LINGER_US;
}

static void report_stream(const struct command *command, uint32_t id, int stream, struct done *done) {
    const struct capture *capture = &command->captured[stream];
    struct buffer bytes = {0};
    capture_copy(capture, &bytes);
    for (size_t at = 0; at < bytes.length; at += CHUNK) {
        size_t left = bytes.length - at;
        wire_send(id, stream ? ERR : OUT, bytes.bytes + at, left < CHUNK ? left : CHUNK);
    }
    buffer_free(&bytes);
    done->stream[stream].omitted = capture_omitted(capture);
    done->stream[stream].cut_at = capture->head.length;
}

void command_report(const struct command *command, uint32_t id) {
    int64_t until = command->exited ? command->ended_us : now_us();
    struct done done = {.status = command->status, .microseconds = (uint64_t)(until - command->started_us)};
    if (command->timed_out) done.flags |= DONE_TIMED_OUT;
    if (!command->exited) done.flags |= DONE_RUNNING;
    for (int stream = 0; stream < 2; stream++) report_stream(command, id, stream, &done);
    wire_send(id, DONE, &done, sizeof done);
}

void command_free(struct command *command) {
    close_input(command);
    for (int stream = 0; stream < 2; stream++) {
        if (command->streams[stream] >= 0) drain(command->streams[stream]);
        capture_free(&command->captured[stream]);
    }
    buffer_free(&command->input);
    free(command);
}
