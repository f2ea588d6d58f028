#define _GNU_SOURCE
#include "image.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mounts.h"

void image_unshare(void) {
    if (unshare(CLONE_NEWNS)) plan_fail("cannot make a mount namespace", NULL);
    mount_or_fail(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

static int user_namespace_of(pid_t child) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", child);
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0) plan_fail("cannot open", path);
    return opened;
}

void image_mount_for(const struct plan *plan, pid_t child) {
    int lower = mount_take(AT_FDCWD, plan->image), users = user_namespace_of(child); /* before BASE is covered */
    mount_map_ids(lower, users);
    close(users);
    mount_tmpfs(BASE, plan->disk, 0755, MS_NOSUID | MS_NODEV);
    if (mkdir(BASE "/lower", 0755)) plan_fail("cannot make", BASE "/lower");
    mount_put(lower, BASE "/lower");
    mount_overlay(BASE "/lower", BASE, false);
    if (chown(BASE "/root", (uid_t)plan->first_id, (gid_t)plan->first_id)) plan_fail("cannot own", BASE "/root");
}

int image_take(void) { return mount_take(AT_FDCWD, BASE "/root"); }
