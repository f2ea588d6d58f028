#define _GNU_SOURCE
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "plan.h"

/* <sys/mount.h> and <linux/mount.h> do not go together. */
int mount(const char *, const char *, const char *, unsigned long, const void *);

enum { TREE_RECURSIVE = 0x8000, INODES = 200000 };

void mount_or_fail(const char *source, const char *target, const char *type, unsigned long flags, const char *data) {
    if (mount(source, target, type, flags, data)) plan_fail("cannot mount", target);
}

void mount_tmpfs(const char *target, unsigned long bytes, unsigned mode, unsigned long flags) {
    char data[96];
    snprintf(data, sizeof data, "size=%lu,nr_inodes=%d,mode=%o", bytes, INODES, mode);
    mount_or_fail("tmpfs", target, "tmpfs", flags, data);
}

/* Mounts copied into a user namespace keep their flags: they must be repeated when one is added. */
static unsigned long flags_of(const char *path) {
    struct statvfs status;
    if (statvfs(path, &status)) plan_fail("cannot look at", path);
    unsigned long flags = 0;
    if (status.f_flag & ST_NOEXEC) flags |= MS_NOEXEC;
    if (status.f_flag & ST_NOATIME) flags |= MS_NOATIME;
    if (status.f_flag & ST_NODIRATIME) flags |= MS_NODIRATIME;
    if (status.f_flag & ST_RELATIME) flags |= MS_RELATIME;
    return flags;
}

void mount_read_only(const char *source, const char *target) {
    mount_or_fail(source, target, NULL, MS_BIND | MS_REC, NULL);
    struct mount_attr closed = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    if (!syscall(SYS_mount_setattr, AT_FDCWD, target, TREE_RECURSIVE, &closed, sizeof closed)) return;
    if (errno != ENOSYS) plan_fail("cannot make read-only", target);
    unsigned long flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | flags_of(target);
    mount_or_fail(NULL, target, NULL, flags, NULL);
}

void mount_devices_read_only(void) {
    static const char *const devices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"};
    if (unshare(CLONE_NEWNS)) return; /* who has not this right has none over the host's devices */
    mount_or_fail(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        if (access(devices[i], F_OK)) continue;
        mount_or_fail(devices[i], devices[i], NULL, MS_BIND, NULL);
        mount_or_fail(NULL, devices[i], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL);
    }
}

static void make_folder(const char *parent, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", parent, name);
    if (mkdir(path, 0755)) plan_fail("cannot make", path);
}

void mount_overlay(const char *lower, const char *upper_parent, bool in_user_namespace) {
    char data[8192], root[4096];
    make_folder(upper_parent, "upper");
    make_folder(upper_parent, "work");
    make_folder(upper_parent, "root");
    snprintf(root, sizeof root, "%s/root", upper_parent);
    snprintf(data, sizeof data, "lowerdir=%s,upperdir=%s/upper,workdir=%s/work%s", lower, upper_parent, upper_parent,
             in_user_namespace ? ",userxattr" : "");
    mount_or_fail("overlay", root, "overlay", MS_NODEV | MS_NOSUID, data);
}

int mount_take(int folder, const char *path) {
    unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (*path ? 0 : AT_EMPTY_PATH);
    int mount = (int)syscall(SYS_open_tree, folder, path, flags);
    if (mount < 0) plan_fail("cannot take the mount of the image", NULL);
    return mount;
}

void mount_put(int mount, const char *path) {
    if (syscall(SYS_move_mount, mount, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH)) plan_fail("cannot mount", path);
    close(mount);
}

void mount_map_ids(int mount, int user_namespace) {
    struct mount_attr mapped = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)user_namespace};
    if (syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH, &mapped, sizeof mapped))
        plan_fail("cannot map the owners of the image's files (needs Linux 5.19)", NULL);
}
