/* An operator at work: made with its states, and ended. */
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "questions.h"

/* The largest number of arguments among a work's steps. */
static uint32_t most_arguments(const clg_mx_work *work) {
    uint32_t most = 0;
    const clg_mx_step *step = work->steps;
    for (int part = 0; part < 4; part++)
        for (uint32_t i = 0; i < work->step_counts[part]; i++, step++)
            if (step->argument_count > most) most = step->argument_count;
    return most;
}

clg_mx_execution *clg_mx_make(clg_mx_call *call, const clg_mx_work *work) {
    clg_mx_execution *execution = calloc(1, sizeof *execution + (work->state_count + 1) * sizeof(void *));
    uint32_t room = most_arguments(work) + 1;
    clg_buffer *buffers = malloc(room * sizeof *buffers);
    if (!execution || !buffers) {
        free(execution);
        free(buffers);
        return NULL;
    }
    *execution = (clg_mx_execution){.call = call, .work = work, .buffers = buffers, .room = room};
    for (int i = 0; i < 3; i++) execution->contexts[i] = execution;
    for (uint32_t i = 0; i < work->state_count; i++) {
        if (posix_memalign(&execution->state[i], ALIGNMENT, work->state[i].bytes + 1)) {
            while (i--) free(execution->state[i]);
            free(execution->buffers);
            free(execution);
            return NULL;
        }
        memcpy(execution->state[i], work->state[i].content, work->state[i].bytes);
    }
    return execution;
}

void clg_mx_end(clg_mx_execution *execution) {
    if (execution->work->draws && !execution->work->is_region) clg_mx_py_end_numbers(execution);
    if (execution->work->is_region) clg_mx_py_end_region(execution);
    for (uint32_t i = 0; i < execution->work->state_count; i++) free(execution->state[i]);
    free(execution->buffers);
    clg_mx_release(execution->call);
    free(execution);
}

void *clg_mx_address(const clg_mx_execution *execution, const arrays *given, const clg_mx_argument *argument) {
    if (argument->group == CLG_MX_STATE) return execution->state[argument->place];
    return given->addresses[given->first[argument->group] + argument->place];
}

void *clg_mx_state_of(clg_mx_execution *execution, uint32_t place) { return execution->state[place]; }
