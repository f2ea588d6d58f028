/* The writable root over an image of files that belong to the host's ids. Only the host's root can map them to the ids of
   a box, so this is done by the guard, before the box is let go; where a box has one id it does it itself. */
#ifndef IMAGE_H
#define IMAGE_H

#include "plan.h"

/* In the guard: a mount namespace of its own. */
void image_unshare(void);
/* In the guard: put the root for the box of `child` together. */
void image_mount_for(const struct plan *plan, pid_t child);
/* In the box, whose mounts are a copy of the guard's: take that root. */
int image_take(void);

#endif
