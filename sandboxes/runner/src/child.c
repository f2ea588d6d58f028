#define _GNU_SOURCE
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.h"
#include "protocol.h"
#include "tree.h"
#include "user.h"

enum {
    EXIT_CANNOT_START = 126,
    EXIT_NOT_FOUND = 127,
    ARGUMENT_LIMIT = 120 << 10, /* the kernel takes 128 KiB for one argument */
    END_TREE_MS = 10000,
};

extern char **environ;

static _Noreturn void fail(int status, const char *format, ...) {
    char text[8192];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof text - 2) length = sizeof text - 2;
    text[length++] = '\n';
    if (write(2, text, (size_t)length) < 0) _exit(status);
    _exit(status);
}

static void close_from(int first) {
    if (!syscall(SYS_close_range, (unsigned)first, ~0U, 0)) return;
    for (int fd = first; fd < 4096; fd++) close(fd);
}

static void take_streams(struct streams streams) {
    /* They are all above 2, since the runner keeps 0, 1 and 2 open. */
    dup2(streams.in, 0);
    dup2(streams.out, 1);
    dup2(streams.err, 2);
    if (streams.state < 0) {
        close_from(3);
        return;
    }
    if (streams.state != STATE_FD) dup2(streams.state, STATE_FD);
    else fcntl(STATE_FD, F_SETFD, 0);
    for (int fd = 3; fd < STATE_FD; fd++) close(fd);
    close_from(STATE_FD + 1);
}

static void reset_signals(void) {
    for (int number = 1; number < 32; number++) signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void prefer_as_oom_victim(void) {
    /* The kernel should end the command, not the runner. Without /proc it decides by size alone. */
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file < 0) return;
    if (write(file, "300", 3) < 0) errno = 0;
    close(file);
}

static void become_user(const struct request *request) {
    struct identity identity = {0};
    char problem[512];
    if (request->user && !user_become(request->user, &identity, problem, sizeof problem))
        fail(EXIT_CANNOT_START, "%s", problem);
    setenv("HOME", *identity.home ? identity.home : "/tmp", 0);
}

static void enter_folder(const struct request *request) {
    if (request->folder && chdir(request->folder))
        fail(EXIT_CANNOT_START, "cannot enter %s: %s", request->folder, strerror(errno));
}

/* Text too long for an argument is read by the shell from a file in memory that it inherits. */
static char *inherited_script(const char *text) {
    size_t length = strlen(text);
    int file = (int)syscall(SYS_memfd_create, "command", 0);
    for (size_t at = 0; at < length;) {
        ssize_t written = write(file, text + at, length - at);
        if (written < 0) fail(EXIT_CANNOT_START, "cannot hold the command: %s", strerror(errno));
        at += (size_t)written;
    }
    lseek(file, 0, SEEK_SET);
    char *command = NULL;
    if (asprintf(&command, ". /proc/self/fd/%d", file) < 0) fail(EXIT_CANNOT_START, "cannot hold the command");
    return command;
}

static _Noreturn void run_shell(char **arguments) {
    size_t count = 0;
    while (arguments[count]) count++;
    char *line[count + 4];
    line[1] = "-c";
    line[2] = strlen(arguments[0]) > ARGUMENT_LIMIT ? inherited_script(arguments[0]) : arguments[0];
    memcpy(line + 4, arguments + 1, count * sizeof *line);
    line[0] = line[3] = "bash";
    execv("/bin/bash", line);
    line[0] = line[3] = "sh";
    execv("/bin/sh", line);
    fail(EXIT_NOT_FOUND, "no shell: /bin/bash and /bin/sh: %s", strerror(errno));
}

static _Noreturn void become_command(const struct request *request) {
    setsid();
    reset_signals();
    umask(022);
    prefer_as_oom_victim();
    environ = request->environment;
    become_user(request);
    enter_folder(request);
    if (request->flags & RUN_SHELL) run_shell(request->arguments);
    execvp(request->arguments[0], request->arguments);
    int status = errno == ENOENT || errno == ENOTDIR ? EXIT_NOT_FOUND : EXIT_CANNOT_START;
    fail(status, "%s: %s", request->arguments[0], strerror(errno));
}

static int exit_code(int wait_status) {
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

/* Wait for the command and reap what it orphans. SIGTERM from the runner: end the whole tree. */
static _Noreturn void supervise(pid_t command) {
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGCHLD);
    sigaddset(&awaited, SIGTERM);
    for (;;) {
        int pid, status;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == command) _exit(exit_code(status));
        if (sigwaitinfo(&awaited, NULL) != SIGTERM) continue;
        kill(-command, SIGKILL);
        tree_end(END_TREE_MS, NULL);
        _exit(128 + SIGKILL);
    }
}

void child_run_command(const struct request *request, struct streams streams) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (getpid() != 1) prctl(PR_SET_PDEATHSIG, SIGTERM);
    take_streams(streams);
    pid_t command = fork();
    if (command < 0) fail(EXIT_CANNOT_START, "cannot start a process: %s", strerror(errno));
    if (!command) become_command(request);
    close_from(0);
    supervise(command);
}

void child_run_file_operation(const struct request *request, struct streams streams) {
    struct identity identity;
    char problem[512];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    take_streams(streams);
    reset_signals();
    umask(022);
    if (request->user && !user_become(request->user, &identity, problem, sizeof problem))
        fail(EPERM, "%s", problem);
    if (request->folder && chdir(request->folder)) fail(errno, "%s: %s", request->folder, strerror(errno));
    _exit(files_run(request->arguments));
}
