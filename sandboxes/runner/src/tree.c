#include "tree.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct process {
    int pid, parent, group;
    bool below;
};

struct table {
    struct process *processes;
    size_t count, capacity;
};

static bool read_process(int proc, const char *pid, struct process *into) {
    char path[64], text[512];
    snprintf(path, sizeof path, "%.20s/stat", pid);
    int file = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return false;
    text[length] = 0;
    /* The name of a program may hold spaces and brackets: the fields start after the last one. */
    char *fields = strrchr(text, ')'), state;
    if (!fields || strlen(fields) < 6) return false;
    state = fields[2];
    into->parent = (int)strtol(fields + 4, &fields, 10);
    into->group = (int)strtol(fields, NULL, 10);
    into->pid = atoi(pid);
    into->below = false;
    return state != 'Z' && state != 'X';
}

static void add(struct table *table, struct process process) {
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? table->capacity * 2 : 256;
        struct process *moved = realloc(table->processes, capacity * sizeof *moved);
        if (!moved) return;
        table->processes = moved;
        table->capacity = capacity;
    }
    table->processes[table->count++] = process;
}

static bool read_table(struct table *table) {
    DIR *proc = opendir("/proc");
    if (!proc) return false;
    struct dirent *entry;
    struct process process;
    while ((entry = readdir(proc)))
        if (isdigit((unsigned char)entry->d_name[0]) && read_process(dirfd(proc), entry->d_name, &process))
            add(table, process);
    closedir(proc);
    return true;
}

static bool is_below(const struct table *table, int pid) {
    for (size_t i = 0; i < table->count; i++)
        if (table->processes[i].pid == pid) return table->processes[i].below;
    return false;
}

static void mark_below(struct table *table, int root) {
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < table->count; i++) {
            struct process *process = &table->processes[i];
            if (process->below || process->pid == root) continue;
            if (process->parent != root && !is_below(table, process->parent)) continue;
            process->below = changed = true;
        }
    }
}

int tree_kill(void) {
    struct table table = {0};
    if (!read_table(&table)) return -1;
    mark_below(&table, getpid());
    int killed = 0;
    for (size_t i = 0; i < table.count; i++) {
        if (!table.processes[i].below) continue;
        /* A group dies in one stroke, so its members cannot outrun us by forking. */
        int group = table.processes[i].group;
        if (group > 1 && group != getpgrp()) kill(-group, SIGKILL);
        kill(table.processes[i].pid, SIGKILL);
        killed++;
    }
    free(table.processes);
    return killed;
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void tree_end(int milliseconds, void (*reaped)(int pid, int wait_status)) {
    long deadline = now_ms() + milliseconds;
    while (now_ms() < deadline) {
        if (getpid() == 1) kill(-1, SIGKILL);
        else tree_kill();
        int status, pid;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (reaped) reaped(pid, status);
        if (pid < 0 && errno == ECHILD) return;
        usleep(500);
    }
}
