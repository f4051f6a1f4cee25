/* An operator at work: made with its states, and ended. */
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "questions.h"

static uint64_t serials;

clg_mx_execution *clg_mx_make(clg_mx_call *call, known_work *known) {
    const clg_mx_work *work = &known->work;
    clg_mx_execution *execution = calloc(1, sizeof *execution + (work->state_count + 1) * sizeof *execution->memory);
    if (!execution) return NULL;
    *execution = (clg_mx_execution){.call = call, .known = known, .work = work, .keeps = !work->is_region};
    execution->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
    execution->region = work->is_region ? NULL : &known->region;
    execution->own = execution->memory;
    for (int i = 0; i < 3; i++) execution->contexts[i] = execution;
    for (uint32_t i = 0; i < work->state_count; i++) {
        clg_mx_memory *memory = &execution->memory[i];
        if (posix_memalign(&memory->handle, ALIGNMENT, work->state[i].bytes + 1)) {
            while (i--) free(execution->memory[i].handle);
            free(execution);
            return NULL;
        }
        memory->kind = CLG_HOST;
        if (work->state[i].content) memcpy(memory->handle, work->state[i].content, work->state[i].bytes);
    }
    return execution;
}

void clg_mx_end(clg_mx_execution *execution) {
    if (execution->work->draws && !execution->work->is_region) clg_mx_py_end_numbers(execution);
    if (execution->work->is_region) clg_mx_py_end_region(execution);
    for (uint32_t i = 0; i < execution->work->state_count; i++) free(execution->memory[i].handle);
    free(execution->buffers);
    clg_mx_release(execution->call);
    free(execution);
}

void *clg_mx_address(const arrays *given, const clg_mx_argument *argument) {
    return given->addresses[given->first[argument->group] + argument->place];
}

void *clg_mx_state_of(clg_mx_execution *execution, uint32_t place) { return execution->memory[place].handle; }
