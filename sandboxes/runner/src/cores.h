/* On which cores the box runs. */
#ifndef CORES_H
#define CORES_H

#include <stdint.h>

/* Keep this process, and all that it starts from now on, to `count` of the cores that it may use. They are taken in order
   from the `first`, counted in a ring, so that boxes with other numbers have other cores. A box could widen this again:
   it is for the neighbours of busy boxes, not against hostile ones. A machine of more cores than a cpu_set_t holds is
   left as it is. */
void cores_keep_to(uint32_t count, uint32_t first);

#endif
