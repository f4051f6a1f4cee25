// Work-groups that meet: TEAM of them leave sums in global memory and wait for each other.
//
// They take their numbers as they begin (`tickets`), so all groups of earlier numbers run or are done: the last team
// that has begun waits for groups that begin as soon as others end, and the others wait for nobody that has not begun.
// So the device must be able to run a team at once. `tickets`, and after it a counter for each team, are 0 before and
// after. With EMULATED a team is one work-group.
//
// IN_TEAM    with EMULATED, which group of its team a work-item belongs to
// IS_FIRST   whether a work-item is the first one of its group, which has seen all that its group wrote
#ifndef IS_FIRST
#define IS_FIRST (get_local_id(0) == 0)
#endif
#define COUNTER volatile global int *const

// The group's number.
#if EMULATED
#define OPEN_NUMBER const uint number = get_group_id(0) * TEAM + IN_TEAM;
#define MEET_TEAM(team) barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
#define LEAVE_TEAM(team)
#else
#define OPEN_NUMBER                                                  \
    local uint taken;                                                \
    if (IS_FIRST) {                                                  \
        taken = atomic_inc(tickets);                                 \
        if (taken == get_num_groups(0) - 1) atomic_xchg(tickets, 0); \
    }                                                                \
    barrier(CLK_LOCAL_MEM_FENCE);                                    \
    const uint number = taken;
#define MEET_TEAM(team)                        \
    if (IS_FIRST) {                            \
        COUNTER met = tickets + 1 + (team);    \
        asm volatile(TEAM_FENCE ::: "memory"); \
        atomic_inc(met);                       \
        while (*met < TEAM) continue;          \
        asm volatile(TEAM_FENCE ::: "memory"); \
    }                                          \
    barrier(CLK_LOCAL_MEM_FENCE);
// The last one of the team to leave sets the counter back; nobody waits for that, so it comes after the result.
#define LEAVE_TEAM(team)                                          \
    if (IS_FIRST) {                                               \
        COUNTER met = tickets + 1 + (team);                       \
        if (atomic_inc(met) == 2 * TEAM - 1) atomic_xchg(met, 0); \
    }
#if WARPS
#define TEAM_FENCE "fence.acq_rel.gpu;"
#else
#define TEAM_FENCE "membar.gl;"
#endif
#endif
