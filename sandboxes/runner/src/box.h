/* The inside of a box of Linux namespaces. */
#ifndef BOX_H
#define BOX_H

#include "plan.h"

/* In the guard's child. Returns as PID 1 of the box, with its root in place and its rights given up. */
void box_enter(const struct plan *plan);

#endif
