// Several launches as one, on CPUs. The functions of their kernels stand in front of this text (core/runtime/joining.py).
//
// A launch is a stage. The work-items, one for each core, run stage after stage: they take the stage's work-groups by
// tickets and count what is done; before a work-item goes on, it waits until all groups of the stage are done. It waits
// only for groups that another work-item has taken, which therefore runs: so nobody waits forever, even where work-items
// run one after the other. Who comes late finds the stages done.
//
// table     long[]: the number of stages; for each memory the bytes of an element of its offset; the place of each
//           stage's row in this table. A row: number of the kernel, of work-groups, their grid, arguments
// tickets   0 before a launch and after it: those of kernels that share items, then from COUNTERS on two for each stage,
//           the next group and those done, each in a line of its own, and one for the work-items that have finished
// room      local memory of a work-group
//
// CASES     the kernels' functions: case 0: ...; break; case 1: ...

#define MEMORIES 44
#define COUNTERS 64   // an int's place in tickets
#define LINE 32       // ints between counters: a line of the caches and its neighbour
#define M(n) global char *m##n##_base, const ulong m##n##_offset
#define B(n) m##n##_base + m##n##_offset * table[1 + n]

#define SPINS 2000  // looks at a counter before a work-item lets other threads have its core
#define SCHED_YIELD 24L  // the number of Linux's call on x86-64

// Waits until a counter is large enough. Where other threads run on the cores, too, those waited for need them.
void wait_for(const volatile global int *counter, const int value) {
    for (int spins = 0; *counter < value; spins++) {
        if (spins < SPINS) {
            __asm__ volatile("pause" ::: "memory");
        } else {
            long result;
            __asm__ volatile("syscall" : "=a"(result) : "a"(SCHED_YIELD) : "rcx", "r11", "memory");
        }
    }
}

SINGLE void joined(
    M(0), M(1), M(2), M(3), M(4), M(5), M(6), M(7), M(8), M(9), M(10), M(11), M(12), M(13), M(14), M(15), M(16), M(17),
    M(18), M(19), M(20), M(21), M(22), M(23), M(24), M(25), M(26), M(27), M(28), M(29), M(30), M(31), M(32), M(33), M(34),
    M(35), M(36), M(37), M(38), M(39), M(40), M(41), M(42), M(43), const global long *table,
    volatile global int *tickets, const int workers, local char *room_base) {
    global char *const memory[MEMORIES] = {
        B(0),  B(1),  B(2),  B(3),  B(4),  B(5),  B(6),  B(7),  B(8),  B(9),  B(10), B(11), B(12), B(13), B(14), B(15),
        B(16), B(17), B(18), B(19), B(20), B(21), B(22), B(23), B(24), B(25), B(26), B(27), B(28), B(29), B(30), B(31),
        B(32), B(33), B(34), B(35), B(36), B(37), B(38), B(39), B(40), B(41), B(42), B(43)};
    const ulong room = (ulong)room_base;
    const int stages = table[0];
    if (!stages) return;
    volatile global int *finished = tickets + COUNTERS;
    for (int stage = 0; stage < stages; stage++) {
        const global long *row = table + table[1 + MEMORIES + stage];
        const int groups = row[1];
        volatile global int *next = finished + (2 * stage + 1) * LINE, *done = next + LINE;
        for (int group; *next < groups && (group = atomic_inc(next)) < groups;) {
            const size_t get_global_size_0 = row[2], get_global_size_1 = row[3], get_global_size_2 = row[4];
            const size_t get_global_id_0 = group % (int)row[2], get_global_id_1 = group / (int)row[2] % (int)row[3],
                         get_global_id_2 = group / (int)row[2] / (int)row[3];
            switch ((int)row[0]) { CASES }
            mem_fence(CLK_GLOBAL_MEM_FENCE);
            atomic_inc(done);
        }
        wait_for(done, groups);
        mem_fence(CLK_GLOBAL_MEM_FENCE);
    }
    if (atomic_inc(finished) < workers - 1) return;
    for (int stage = 0; stage < stages; stage++)
        finished[(2 * stage + 1) * LINE] = finished[(2 * stage + 2) * LINE] = 0;
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    atomic_xchg(finished, 0);
}
