/* The resident runner of a sandbox: a small static program that starts commands and moves files for a client that talks
   to it over its standard input and output (protocol.h).

   It is PID 1 of the box where the box has processes of its own, so nobody inside can end it. Its promises:

   - Several commands run at once, each in a session of its own under a supervisor that inherits its orphans, so that a
     time limit or KILL ends all that a command started, also what called setsid.
   - A command is over when its main process is, whoever still holds its output.
   - Memory is bounded: output is kept by head and tail, input and file contents move by credit.
   - When its standard input ends (its owner is gone), it kills everything below it and exits.
   - Its memory and environment are closed to the box (PR_SET_DUMPABLE), its signals are ignored, and nobody can set its
     limits: the kernel allows that to whoever has all of its ids, so where it may it takes a saved group of its own.
     Where a box has a single id, the seccomp filter refuses it. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "box.h"
#include "command.h"
#include "cores.h"
#include "drain.h"
#include "filter.h"
#include "guard.h"
#include "mounts.h"
#include "plan.h"
#include "protocol.h"
#include "tree.h"
#include "wire.h"

enum { COMMAND_LIMIT = 256, EXIT_CANNOT_START = 126, EXIT_PROTOCOL = 76, EXIT_USAGE = 64, KILL_ALL_MS = 10000, OWN_GROUP = 65534 };

static struct command *commands;
static int command_count, child_signals;

/* ---- requests ------------------------------------------------------------------------------------------------- */

static struct command *find(uint32_t id) {
    struct command *command = commands;
    while (command && command->id != id) command = command->next;
    return command;
}

static void send_done(uint32_t id, int32_t status, uint32_t flags) {
    struct done done = {.status = status, .flags = flags};
    wire_send(id, DONE, &done, sizeof done);
}

static void refuse(uint32_t id, uint32_t flags, int number) {
    char text[256];
    int length = snprintf(text, sizeof text, "cannot start a process: %s\n", strerror(number));
    wire_send(id, flags & RUN_MERGE ? OUT : ERR, text, (size_t)length);
    send_done(id, flags & RUN_FILE ? number : EXIT_CANNOT_START, 0);
}

static void run(const struct frame *frame) {
    struct request request;
    if (!request_parse(&request, frame->payload, frame->length) || find(frame->id)) _exit(EXIT_PROTOCOL);
    errno = EAGAIN;
    struct command *command = command_count < COMMAND_LIMIT ? command_start(frame->id, &request) : NULL;
    if (command) {
        command->next = commands;
        commands = command;
        command_count++;
    } else {
        refuse(frame->id, request.flags, errno);
    }
    request_free(&request);
}

static void peek(const struct frame *frame, uint32_t target) {
    struct command *command = find(target);
    if (command) command_report(command, frame->id);
    else send_done(frame->id, 0, DONE_UNKNOWN);
}

static void reaped(int pid, int wait_status) {
    for (struct command *command = commands; command; command = command->next)
        if (command->pid == pid && !command->exited) command_exited(command, wait_status);
}

static void reap(void) {
    int pid, status;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) reaped(pid, status);
}

static void kill_all(uint32_t id) {
    reap();
    int count = tree_kill();
    for (struct command *command = commands; command; command = command->next)
        count -= !command->exited && !(command->flags & RUN_FILE); /* its supervisor is ours */
    tree_end(KILL_ALL_MS, reaped);
    send_done(id, count < 0 ? 0 : count, 0);
}

static uint32_t number_of(const struct frame *frame) {
    uint32_t number = 0;
    if (frame->length == sizeof number) memcpy(&number, frame->payload, sizeof number);
    return number;
}

static void keep_to_cores(const struct frame *frame) {
    uint32_t numbers[2];
    if (frame->length != sizeof numbers) _exit(EXIT_PROTOCOL);
    memcpy(numbers, frame->payload, sizeof numbers);
    cores_keep_to(numbers[0], numbers[1]);
}

static void handle(const struct frame *frame) {
    /* A frame for a command that is over is no mistake: it was under way when DONE was sent. */
    struct command *command = find(frame->id);
    switch (frame->kind) {
        case RUN: run(frame); break;
        case PEEK: peek(frame, number_of(frame)); break;
        case CORES: keep_to_cores(frame); break;
        case FILTER: filter_calls(frame->payload, frame->length); break;
        case KILL_ALL: kill_all(frame->id); break;
        case INPUT: if (command) command_input(command, frame->payload, frame->length); break;
        case INPUT_END: if (command) command_input_end(command); break;
        case KILL: if (command) command_kill(command); break;
        case CREDIT: if (command) command->credit += number_of(frame); break;
        default: _exit(EXIT_PROTOCOL);
    }
}

/* ---- the loop ------------------------------------------------------------------------------------------------- */

enum { FIXED = 3, PER_COMMAND = 3 };
static struct pollfd polls[FIXED + DRAIN_LIMIT + PER_COMMAND * COMMAND_LIMIT];

static struct pollfd watch(int fd, short events, bool wanted) {
    return (struct pollfd){.fd = wanted ? fd : -1, .events = events};
}

/* Lays out `polls`: the fixed ones, three of each command in order of the list, the drained pipes. */
static size_t watch_all(size_t *drained) {
    size_t count = 0;
    polls[count++] = watch(wire_in(), POLLIN, !wire_is_full());
    polls[count++] = watch(wire_out(), POLLOUT, wire_has_pending());
    polls[count++] = watch(child_signals, POLLIN, true);
    for (struct command *command = commands; command; command = command->next) {
        polls[count++] = watch(command->in, POLLOUT, command->input.length > 0);
        for (int stream = 0; stream < 2; stream++)
            polls[count++] = watch(command->streams[stream], POLLIN, command_wants_read(command, stream));
    }
    *drained = drain_poll(polls + count);
    return count;
}

static int wait_time_ms(void) {
    int64_t first = 0;
    for (struct command *command = commands; command; command = command->next) {
        int64_t tick = command_next_tick(command);
        if (tick && (!first || tick < first)) first = tick;
    }
    if (!first) return -1;
    int64_t left = first - now_us();
    return left <= 0 ? 0 : left > 60000000 ? 60000 : (int)((left + 999) / 1000);
}

static void serve_commands(void) {
    size_t at = FIXED;
    for (struct command *command = commands; command; command = command->next, at += PER_COMMAND) {
        if (polls[at].revents) command_feed(command);
        for (int stream = 0; stream < 2; stream++)
            if (polls[at + 1 + (size_t)stream].revents) command_read(command, stream);
    }
}

static void finish_commands(void) {
    int64_t now = now_us();
    for (struct command **link = &commands; *link;) {
        struct command *command = *link;
        command_tick(command, now);
        if (!command_is_over(command, now)) {
            link = &command->next;
            continue;
        }
        command_report(command, command->id);
        *link = command->next;
        command_count--;
        command_free(command);
    }
}

static void take_child_signals(void) {
    struct signalfd_siginfo ignored;
    while (read(child_signals, &ignored, sizeof ignored) > 0) continue;
    reap();
}

static void leave(void) {
    tree_end(KILL_ALL_MS, NULL);
    _exit(0);
}

static void serve_client(void) {
    struct frame frame;
    if (!wire_read()) leave();
    while (wire_next(&frame)) handle(&frame);
}

static void serve(void) {
    for (;;) {
        size_t drained, count = watch_all(&drained);
        if (poll(polls, count + drained, wait_time_ms()) < 0 && errno != EINTR) leave();
        drain_read(polls + count, drained);
        serve_commands();
        if (polls[2].revents) take_child_signals();
        if (polls[0].revents) serve_client();
        finish_commands();
        if (!wire_flush()) leave();
    }
}

/* ---- start ---------------------------------------------------------------------------------------------------- */

static void take_signals(void) {
    static const int ignored[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGTTIN, SIGTTOU};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
    /* Blocked here, awaited by supervisors, which inherit it: none can be lost between fork and sigwait. */
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGCHLD);
    sigaddset(&awaited, SIGTERM);
    sigprocmask(SIG_BLOCK, &awaited, NULL);
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    child_signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void say_hello(void) {
    uint32_t hello[] = {PROTOCOL_VERSION, (uint32_t)getpid(), getuid()};
    wire_send(0, HELLO, hello, sizeof hello);
    wire_flush();
}

/* Make the box around this process, or guard a command that makes its own. */
static void make_box(int plan_file) {
    static struct plan plan;
    plan_read(&plan, plan_file);
    guard(&plan);
    if (plan.exec) {
        if (!geteuid()) mount_devices_read_only(); /* the root of such a box is that of the host */
        execv(plan.exec[0], plan.exec);
        plan_fail("cannot start", plan.exec[0]);
    }
    box_enter(&plan);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "plan")) make_box(atoi(argv[2]));
    else if (argc > 1) return EXIT_USAGE; /* never serve outside where a box was meant */
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (setresgid((gid_t)-1, (gid_t)-1, OWN_GROUP)) errno = 0; /* programs that it starts do not inherit it */
    wire_open();
    take_signals();
    say_hello();
    serve();
}
