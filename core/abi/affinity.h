/* Where the calling thread may run, kept before a driver's calls and restored after them. */
#ifndef CLGRAFT_AFFINITY_H
#define CLGRAFT_AFFINITY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct clg_affinity {
    bool known;
    uint64_t cores[16];
} clg_affinity;
void clg_affinity_keep(clg_affinity *kept);
void clg_affinity_restore(const clg_affinity *kept);

#endif
