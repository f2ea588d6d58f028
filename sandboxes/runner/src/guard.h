/* The process outside a box that watches over it. */
#ifndef GUARD_H
#define GUARD_H

#include "plan.h"

/* Fork. Returns in the child, which has the limits of the plan and the ids of the plan in a user namespace of its own
   (unless the plan says `exec`: then it is also in the control groups), and dies with the guard. The guard never returns:
   it waits for the child, ends it when the owner is gone, and removes the control groups. */
void guard(const struct plan *plan);

/* To join a control group the kernel waits some ten milliseconds for all its processors. So the guard puts the first
   process of the box there while that makes its root: the child names it, and it waits before it serves. */
void guard_name_first(pid_t first);
void guard_await_cgroups(void);

#endif
