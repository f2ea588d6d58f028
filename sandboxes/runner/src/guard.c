#define _GNU_SOURCE
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "image.h"

enum { REMOVE_TRIES = 2000, REMOVE_PAUSE_US = 1000 };

/* `go` lets the child go, then the first process of the box; `named` carries that one's id. */
static int go[2], named[2];

static void write_file(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, strlen(text)) < 0) plan_fail("cannot write", path);
    close(file);
}

static void write_process_file(pid_t pid, const char *name, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    write_file(path, text);
}

static void map_ids(const struct plan *plan, pid_t child) {
    char users[64], groups[64];
    if (plan->id_count) {
        snprintf(users, sizeof users, "0 %lu %lu", plan->first_id, plan->id_count);
        snprintf(groups, sizeof groups, "%s", users);
    } else {
        write_process_file(child, "setgroups", "deny");
        snprintf(users, sizeof users, "%d %d 1", INSIDE_ID, geteuid());
        snprintf(groups, sizeof groups, "%d %d 1", INSIDE_ID, getegid());
    }
    write_process_file(child, "uid_map", users);
    write_process_file(child, "gid_map", groups);
}

static void join_cgroups(const struct plan *plan, pid_t child) {
    char path[4096], pid[16];
    snprintf(pid, sizeof pid, "%d", child);
    for (int i = 0; i < plan->cgroup_count; i++) {
        snprintf(path, sizeof path, "%s/cgroup.procs", plan->cgroups[i]);
        write_file(path, pid);
    }
}

static void set_rlimits(const struct plan *plan) {
    for (int i = 0; i < plan->rlimit_count; i++) {
        struct rlimit limit = {plan->rlimits[i].value, plan->rlimits[i].value}, now;
        if (getrlimit(plan->rlimits[i].number, &now)) plan_fail("cannot set a limit", NULL);
        if (limit.rlim_max > now.rlim_max) limit.rlim_cur = limit.rlim_max = now.rlim_max;
        if (setrlimit(plan->rlimits[i].number, &limit)) plan_fail("cannot set a limit", NULL);
    }
}

/* A group is busy for a moment after its last process. */
static void remove_cgroups(const struct plan *plan) {
    for (int i = 0; i < plan->cgroup_count; i++)
        for (int tries = 0; rmdir(plan->cgroups[i]) && errno == EBUSY && tries < REMOVE_TRIES; tries++)
            usleep(REMOVE_PAUSE_US);
}

static void let_go_of_streams(void) {
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 2; fd++) {
        if (nothing >= 0) dup2(nothing, fd);
        else close(fd);
    }
}

static int watch_children(void) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    return signalfd(-1, &children, SFD_CLOEXEC);
}

static int watch_owner(const struct plan *plan) {
    if (!plan->owner) return -1;
    int owner = (int)syscall(SYS_pidfd_open, plan->owner, 0);
    if (owner < 0) plan_fail("the owner of the box is not there", NULL);
    return owner;
}

/* Until the child and all that it left are gone; as a subreaper the guard inherits the PID 1 of the box from it. */
static int wait_for_end(pid_t child, int owner, int children) {
    int code = 0;
    struct pollfd polls[] = {{.fd = owner, .events = POLLIN}, {.fd = children, .events = POLLIN}};
    for (;;) {
        int pid, status;
        struct signalfd_siginfo ignored;
        poll(polls, 2, -1);
        if (polls[1].revents && read(children, &ignored, sizeof ignored) < 0) continue;
        if (polls[0].revents) {
            kill(child, SIGKILL);
            polls[0].fd = -1;
        }
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == child) code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (pid < 0 && errno == ECHILD) return code;
    }
}

static void let_go(void) {
    if (write(go[1], "", 1) != 1) plan_fail("cannot start", NULL);
}

static void await_go(void) {
    char byte;
    if (read(go[0], &byte, 1) != 1) _exit(0); /* the guard has said why */
}

void guard_name_first(pid_t first) {
    if (write(named[1], &first, sizeof first) != sizeof first) _exit(0);
    close(named[1]);
}

void guard_await_cgroups(void) {
    close(named[1]);
    await_go();
    close(go[0]);
}

static void become_child(const struct plan *plan, int owner, int children) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(go[1]);
    close(named[0]);
    close(children);
    if (owner >= 0) close(owner);
    await_go();
    set_rlimits(plan);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* The process that is to be in the control groups: the first of the box, where the child makes one. */
static void limit(const struct plan *plan) {
    pid_t first;
    if (read(named[0], &first, sizeof first) != sizeof first) return; /* the child has said why */
    join_cgroups(plan, first);
    let_go();
}

static void release(const struct plan *plan, pid_t child) {
    if (plan->exec) {
        join_cgroups(plan, child);
        let_go();
        return;
    }
    map_ids(plan, child);
    if (plan->image && plan->id_count) image_mount_for(plan, child);
    let_go();
    limit(plan);
    close(go[1]);
    close(named[0]);
}

void guard(const struct plan *plan) {
    int owner = watch_owner(plan), children = watch_children();
    if (children < 0 || pipe2(go, O_CLOEXEC) || pipe2(named, O_CLOEXEC)) plan_fail("cannot start", NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (plan->image && plan->id_count) image_unshare();
    unsigned long flags = SIGCHLD | (plan->exec ? 0 : CLONE_NEWUSER);
    pid_t child = (pid_t)syscall(SYS_clone, flags, 0, 0, 0, 0);
    if (child < 0) plan_fail("cannot make a user namespace", NULL);
    if (!child) {
        become_child(plan, owner, children);
        return;
    }
    close(go[0]);
    close(named[1]);
    release(plan, child);
    prctl(PR_SET_DUMPABLE, 0);
    let_go_of_streams();
    int code = wait_for_end(child, owner, children);
    remove_cgroups(plan);
    _exit(code);
}
