/* The process outside a box that watches over it. */
#ifndef GUARD_H
#define GUARD_H

#include "plan.h"

/* Fork. Returns in the child, which is in the control groups and limits of the plan, has the ids of the plan in a user
   namespace of its own (unless the plan says `exec`), and dies with the guard. The guard never returns: it waits for the
   child, ends it when the owner is gone, and removes the control groups. */
void guard(const struct plan *plan);

#endif
