#define _GNU_SOURCE
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "user.h"

enum { BLOCK = 64 << 10, PATH_LIMIT = 4096, DEPTH_LIMIT = 200 };

struct record {
    uint8_t kind;
    uint32_t mode;
    uint64_t size;
    uint32_t path_length;
} __attribute__((packed));

static unsigned char block[BLOCK];
static uint64_t pack_budget;

static _Noreturn void fail(int number, const char *path) {
    dprintf(2, "%s: %s\n", path, strerror(number));
    _exit(number);
}

static void put(const void *bytes, size_t length) {
    const char *at = bytes;
    while (length) {
        ssize_t written = write(1, at, length);
        if (written < 0) fail(errno, "output");
        at += written;
        length -= (size_t)written;
    }
}

/* Whether `length` bytes came before the end of standard input. */
static bool get(void *bytes, size_t length) {
    char *at = bytes;
    while (length) {
        ssize_t got = read(0, at, length);
        if (got < 0) fail(errno, "input");
        if (!got) return false;
        at += got;
        length -= (size_t)got;
    }
    return true;
}

static size_t smaller(uint64_t left) { return left < BLOCK ? (size_t)left : BLOCK; }

/* ---- read and write ------------------------------------------------------------------------------------------- */

/* O_NONBLOCK: the agent may have put a pipe there, which would never open. */
static int open_regular(int folder, const char *path, int flags) {
    int file = openat(folder, path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
    struct stat status;
    if (file < 0) fail(errno == ENXIO ? EINVAL : errno, path);
    if (fstat(file, &status)) fail(errno, path);
    if (S_ISDIR(status.st_mode)) fail(EISDIR, path);
    if (!S_ISREG(status.st_mode)) fail(EINVAL, path);
    return file;
}

static int read_file(const char *path, uint64_t limit) {
    int file = open_regular(AT_FDCWD, path, O_RDONLY);
    struct stat status;
    if (!fstat(file, &status) && (uint64_t)status.st_size > limit) fail(EFBIG, path);
    ssize_t got;
    while ((got = read(file, block, BLOCK)) > 0) {
        if ((uint64_t)got > limit) fail(EFBIG, path);
        limit -= (uint64_t)got;
        put(block, (size_t)got);
    }
    if (got < 0) fail(errno, path);
    return 0;
}

static void make_folders_of(const char *path) {
    char parent[PATH_LIMIT];
    if (strlen(path) >= sizeof parent) fail(ENAMETOOLONG, path);
    strcpy(parent, path);
    for (char *slash = strchr(parent + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int refusal = mkdir(parent, 0755) ? errno : 0;
        if (refusal && refusal != EEXIST && access(parent, F_OK)) fail(refusal, parent);
        *slash = '/';
    }
}

static void write_all(int file, const void *bytes, size_t length, const char *path) {
    const char *at = bytes;
    while (length) {
        ssize_t written = write(file, at, length);
        if (written < 0) fail(errno, path);
        at += written;
        length -= (size_t)written;
    }
}

static int write_file(const char *path, const char *mode) {
    make_folders_of(path);
    bool existed = !access(path, F_OK);
    int file = open_regular(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC);
    ssize_t got;
    while ((got = read(0, block, BLOCK)) > 0) write_all(file, block, (size_t)got, path);
    if (got < 0) fail(errno, path);
    if (*mode ? fchmod(file, (mode_t)strtoul(mode, NULL, 8)) : !existed && fchmod(file, 0644)) {
        /* A file of someone else that may be written but not changed keeps its mode. */
        if (errno != EPERM || !existed) fail(errno, path);
    }
    if (close(file)) fail(errno, path);
    return 0;
}

/* ---- pack ----------------------------------------------------------------------------------------------------- */

static void put_record(uint8_t kind, mode_t mode, uint64_t size, const char *path) {
    struct record record = {kind, mode & 07777, size, (uint32_t)strlen(path)};
    if (size > pack_budget) fail(EFBIG, path);
    pack_budget -= size;
    put(&record, sizeof record);
    put(path, record.path_length);
}

static void pack_file(int folder, const char *name, const char *path, int follow) {
    int file = open_regular(folder, name, O_RDONLY | follow);
    struct stat status;
    if (fstat(file, &status)) fail(errno, path);
    put_record('f', status.st_mode, (uint64_t)status.st_size, path);
    uint64_t left = (uint64_t)status.st_size;
    while (left) {
        ssize_t got = read(file, block, smaller(left));
        if (got < 0) fail(errno, path);
        if (!got) memset(block, 0, (size_t)(got = (ssize_t)smaller(left))); /* it shrank: the size was promised */
        put(block, (size_t)got);
        left -= (uint64_t)got;
    }
    close(file);
}

static void pack_link(int folder, const char *name, const char *path) {
    char target[PATH_LIMIT];
    ssize_t length = readlinkat(folder, name, target, sizeof target);
    if (length < 0) fail(errno, path);
    put_record('l', 0777, (uint64_t)length, path);
    put(target, (size_t)length);
}

static void pack_folder(int folder, const char *path, int depth);

static void pack_entry(int folder, const char *name, const char *path, int depth) {
    struct stat status;
    if (fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW)) {
        if (errno == ENOENT) return; /* gone since the folder was read */
        fail(errno, path);
    }
    if (S_ISREG(status.st_mode)) pack_file(folder, name, path, O_NOFOLLOW);
    else if (S_ISLNK(status.st_mode)) pack_link(folder, name, path);
    else if (S_ISDIR(status.st_mode)) {
        int below = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below < 0) fail(errno, path);
        put_record('d', status.st_mode, 0, path);
        pack_folder(below, path, depth + 1);
    }
}

static void pack_folder(int folder, const char *path, int depth) {
    DIR *entries = depth > DEPTH_LIMIT ? NULL : fdopendir(folder);
    if (!entries) fail(depth > DEPTH_LIMIT ? ENAMETOOLONG : errno, path);
    struct dirent *entry;
    while ((entry = readdir(entries))) {
        char below[PATH_LIMIT];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        int length = snprintf(below, sizeof below, "%s%s%s", path, *path ? "/" : "", entry->d_name);
        if (length >= (int)sizeof below) fail(ENAMETOOLONG, path);
        pack_entry(folder, entry->d_name, below, depth);
    }
    closedir(entries);
}

static int pack(const char *path, uint64_t limit) {
    struct stat status;
    pack_budget = limit;
    if (stat(path, &status)) fail(errno, path);
    if (S_ISDIR(status.st_mode)) {
        int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (folder < 0) fail(errno, path);
        put_record('d', status.st_mode, 0, "");
        pack_folder(folder, "", 0);
    } else {
        pack_file(AT_FDCWD, path, "", 0);
    }
    put_record('e', 0, 0, "");
    return 0;
}

/* ---- unpack --------------------------------------------------------------------------------------------------- */

/* The folder of `path` below `root`, entered part by part so that no symbolic link can lead outside. */
static int open_parent(int root, const char *path, const char **name) {
    int folder = dup(root);
    char part[PATH_LIMIT];
    for (const char *slash; (slash = strchr(path, '/')); path = slash + 1) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        if (mkdirat(folder, part, 0755) && errno != EEXIST) fail(errno, part);
        int below = openat(folder, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below < 0) fail(errno, part);
        close(folder);
        folder = below;
    }
    *name = path;
    return folder;
}

static void unpack_file(int folder, const char *name, const struct record *record) {
    /* Replaced, not overwritten: what lies there may be a link to somewhere else. */
    if (unlinkat(folder, name, 0) && errno != ENOENT) fail(errno, name);
    int file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) fail(errno, name);
    for (uint64_t left = record->size; left;) {
        size_t length = smaller(left);
        if (!get(block, length)) fail(EPIPE, name);
        write_all(file, block, length, name);
        left -= length;
    }
    if (fchmod(file, record->mode) || close(file)) fail(errno, name);
}

static void unpack_link(int folder, const char *name, const struct record *record) {
    char target[PATH_LIMIT];
    if (record->size >= sizeof target) fail(ENAMETOOLONG, name);
    if (!get(target, record->size)) fail(EPIPE, name);
    target[record->size] = 0;
    if (unlinkat(folder, name, 0) && errno != ENOENT) fail(errno, name);
    if (symlinkat(target, folder, name)) fail(errno, name);
}

static void unpack_folder(int folder, const char *name, const struct record *record) {
    if (mkdirat(folder, name, 0700) && errno != EEXIST) fail(errno, name);
    int below = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below < 0) fail(errno, name);
    /* Files still have to be made in it, whatever its mode says. */
    if (fchmod(below, record->mode | 0700) && errno != EPERM) fail(errno, name);
    close(below);
}

static void unpack_record(int root, const struct record *record, const char *path) {
    const char *name;
    int folder = open_parent(root, path, &name);
    if (record->kind == 'f') unpack_file(folder, name, record);
    else if (record->kind == 'l') unpack_link(folder, name, record);
    else if (record->kind == 'd') unpack_folder(folder, name, record);
    else fail(EPROTO, path);
    close(folder);
}

static int unpack(const char *target) {
    struct record record;
    char path[PATH_LIMIT];
    make_folders_of(target);
    if (mkdir(target, 0755) && errno != EEXIST) fail(errno, target);
    int root = open(target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) fail(errno, target);
    for (;;) {
        if (!get(&record, sizeof record)) fail(EPIPE, target);
        if (record.kind == 'e') return 0;
        if (record.path_length >= sizeof path || !get(path, record.path_length)) fail(EPROTO, target);
        path[record.path_length] = 0;
        unpack_record(root, &record, path);
    }
}

/* ---- give ----------------------------------------------------------------------------------------------------- */

static int give(const char *path, const char *user) {
    struct identity identity;
    char problem[512];
    make_folders_of(path);
    if (mkdir(path, 0755) && errno != EEXIST) fail(errno, path);
    if (!*user) return 0;
    if (!user_find(user, &identity, problem, sizeof problem)) {
        dprintf(2, "%s\n", problem);
        return EINVAL;
    }
    if (chown(path, identity.uid, identity.gid)) fail(errno, path);
    return 0;
}

int files_run(char **arguments) {
    const char *name = arguments[0], *path = arguments[1], *third = path ? arguments[2] : NULL;
    if (!path) fail(EPROTO, name);
    if (!strcmp(name, "unpack")) return unpack(path);
    if (!third) fail(EPROTO, name);
    if (!strcmp(name, "read")) return read_file(path, strtoull(third, NULL, 10));
    if (!strcmp(name, "write")) return write_file(path, third);
    if (!strcmp(name, "pack")) return pack(path, strtoull(third, NULL, 10));
    if (!strcmp(name, "give")) return give(path, third);
    fail(ENOSYS, name);
}
