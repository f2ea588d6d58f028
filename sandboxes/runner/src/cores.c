#define _GNU_SOURCE
#include "cores.h"

#include <sched.h>

void cores_keep_to(uint32_t count, uint32_t first) {
    cpu_set_t allowed, chosen;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    uint32_t total = (uint32_t)CPU_COUNT(&allowed);
    if (!count || count >= total) return;
    CPU_ZERO(&chosen);
    for (uint32_t core = 0, place = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed)) continue;
        if ((place + total - first % total) % total < count) CPU_SET(core, &chosen);
        place++;
    }
    sched_setaffinity(0, sizeof chosen, &chosen);
}
