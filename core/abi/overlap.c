/* Arguments that share memory although their problem does not allow it. */
#include "errors.h"
#include "overlap.h"

static bool overlap(const clg_buffer *a, uint64_t a_bytes, const clg_buffer *b, uint64_t b_bytes) {
    if (a->kind != b->kind || (a->kind != CLG_HOST && a->handle != b->handle)) return false;
    uint64_t a_start = a->offset, b_start = b->offset;
    if (a->kind == CLG_HOST) {
        a_start += (uint64_t)(uintptr_t)a->handle;
        b_start += (uint64_t)(uintptr_t)b->handle;
    }
    return a_start < b_start + b_bytes && b_start < a_start + a_bytes;
}

clg_status clg_check_apart(const struct clg_plan_s *p, const clg_buffer *buffers) {
    for (uint32_t o = 0; p->apart && o < p->argument_count; o++) {
        const clg_argument *out = &p->arguments[o];
        if (out->role == CLG_IN || buffers[o].mode == CLG_SKIP || !out->bytes) continue;
        for (uint32_t i = 0; i < p->argument_count; i++) {
            const clg_argument *other = &p->arguments[i];
            if (i == o || buffers[i].mode == CLG_SKIP || !other->bytes) continue;
            if (overlap(&buffers[o], out->bytes, &buffers[i], other->bytes))
                return clg_fail(
                    CLG_INVALID_ARGUMENT,
                    "[run] got %s in the memory of %s, expected memory of its own: it is written while %s is read",
                    p->names[o], p->names[i], p->names[i]);
        }
    }
    return CLG_OK;
}
