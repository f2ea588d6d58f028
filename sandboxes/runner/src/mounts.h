/* The mount calls, each ending the program where it fails. */
#ifndef MOUNTS_H
#define MOUNTS_H

#include <stdbool.h>

/* Where a box is put together, in a mount namespace that nobody else sees. */
#define BASE "/tmp"

void mount_or_fail(const char *source, const char *target, const char *type, unsigned long flags, const char *data);
void mount_tmpfs(const char *target, unsigned long bytes, unsigned mode, unsigned long flags);
/* A tree with all that is mounted in it. Read-only, without devices or set-user-id programs. */
void mount_read_only(const char *source, const char *target);
/* The devices that a box is given, as bwrap takes them from the host: nobody in the box may change their nodes.
   In a mount namespace of this process's own, from now on. */
void mount_devices_read_only(void);
/* An overlay of `lower` in the writable folder `upper_parent`, at its folder `root`. */
void mount_overlay(const char *lower, const char *upper_parent, bool in_user_namespace);
/* A mount as a descriptor, detached from any place; `at` it is put somewhere. */
int mount_take(int folder, const char *path);
void mount_put(int mount, const char *path);
/* Show the files of a detached mount as `user_namespace` maps their ids. */
void mount_map_ids(int mount, int user_namespace);

#endif
