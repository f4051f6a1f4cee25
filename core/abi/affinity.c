/* Where the calling thread may run, kept over a driver's calls: a CPU driver, told to keep its threads on cores of
 * their own, may do the same to every thread that enters it, and all that such a thread starts later (a framework's own
 * OpenMP threads, child processes) would share that one core. */
#ifdef __linux__
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include "affinity.h"

_Static_assert(sizeof(cpu_set_t) <= sizeof(clg_affinity), "clg_affinity is too small");

void clg_affinity_keep(clg_affinity *kept) {
    kept->known = sched_getaffinity(0, sizeof(cpu_set_t), (cpu_set_t *)kept->cores) == 0;
}

void clg_affinity_restore(const clg_affinity *kept) {
    cpu_set_t now;
    if (!kept->known || sched_getaffinity(0, sizeof now, &now)) return;
    if (memcmp(&now, kept->cores, sizeof now)) sched_setaffinity(0, sizeof now, (const cpu_set_t *)kept->cores);
}
#else
#include "affinity.h"

void clg_affinity_keep(clg_affinity *kept) { kept->known = false; }
void clg_affinity_restore(const clg_affinity *kept) { (void)kept; }
#endif
