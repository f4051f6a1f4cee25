/* Arrays: memory of a device that a caller owns. */
#include <stdlib.h>
#include <string.h>

#include "affinity.h"
#include "arrays.h"
#include "errors.h"
#include "handles.h"
#include "wait.h"

static void array_free(void *object) {
    struct clg_array_s *a = object;
    struct clg_context_s *c = a->context;
    if (c->fork_count == clg_fork_count()) {
        pthread_mutex_lock(&c->mutex);
        if (a->memory) cl_finish(c->queue); /* kernels may still use it; of a cl_mem the driver takes care */
        if (a->mem) cl_release_mem(a->mem);
        c->generation++;
        pthread_mutex_unlock(&c->mutex);
    }
    free(a->memory);
    free(a);
    clg_handle_drop(c);
}

static clg_status make(struct clg_array_s *a) {
    struct clg_context_s *c = a->context;
    int32_t code = 0;
    if (c->fork_count != clg_fork_count())
        return clg_fail(CLG_FORKED, "[array] got a context from before fork(), expected one made in this process");
    uint64_t bytes = a->bytes ? a->bytes : 1;
    if (c->host_access == CLG_RAW_POINTER) {
        if (posix_memalign(&a->memory, 4096, bytes)) a->memory = NULL;
    } else {
        pthread_mutex_lock(&c->mutex);
        a->mem = clg_device_memory(c, bytes, &code);
        pthread_mutex_unlock(&c->mutex);
    }
    if (a->memory || a->mem) return CLG_OK;
    return code && code != -4 && code != -6 && code != -61
               ? clg_cl_fail("clCreateBuffer", code)
               : clg_fail(CLG_OUT_OF_MEMORY, "[array] got no memory for %llu bytes", (unsigned long long)a->bytes);
}

clg_status clg_array_create(clg_context context, uint64_t bytes, clg_array *array) {
    if (!array) return clg_fail(CLG_INVALID_ARGUMENT, "[array] got array NULL, expected a place for the handle");
    *array = NULL;
    struct clg_context_s *c = clg_handle_acquire(context, CLG_KIND_CONTEXT);
    if (!c) return CLG_INVALID_HANDLE;
    struct clg_array_s *a = calloc(1, sizeof *a);
    if (!a) {
        clg_handle_drop(c);
        return clg_fail(CLG_OUT_OF_MEMORY, "[array] no memory for an array");
    }
    a->context = c;
    a->bytes = bytes;
    clg_status status = make(a);
    if (!status && !(*array = clg_handle_new(CLG_KIND_ARRAY, a, array_free)))
        status = clg_fail(CLG_OUT_OF_MEMORY, "[array] no memory for a handle");
    if (status) array_free(a);
    return status;
}

clg_status clg_array_destroy(clg_array array) { return clg_handle_destroy(array, CLG_KIND_ARRAY); }

static clg_status move(clg_array array, uint64_t offset, void *data, uint64_t bytes, bool write) {
    struct clg_array_s *a = clg_handle_acquire(array, CLG_KIND_ARRAY);
    if (!a) return CLG_INVALID_HANDLE;
    struct clg_context_s *c = a->context;
    clg_status status = CLG_OK;
    if (c->fork_count != clg_fork_count())
        status = clg_fail(CLG_FORKED, "[array] got an array from before fork(), expected one made in this process");
    else if (!data && bytes)
        status =
            clg_fail(CLG_INVALID_ARGUMENT, "[array] got data NULL, expected %llu bytes", (unsigned long long)bytes);
    else if (offset > a->bytes || bytes > a->bytes - offset)
        status = clg_fail(CLG_BUFFER_TOO_SMALL, "[array] got an array of %llu bytes, expected %llu from offset %llu on",
                          (unsigned long long)a->bytes, (unsigned long long)bytes, (unsigned long long)offset);
    else if (bytes) {
        clg_affinity affinity;
        clg_affinity_keep(&affinity);
        clg_turn_begin(&c->turns);
        pthread_mutex_lock(&c->mutex);
        int32_t code = 0;
        if (write) a->version = 0;
        if (a->memory) {
            code = cl_finish(c->queue);
            if (!code && write) memcpy((char *)a->memory + offset, data, bytes);
            if (!code && !write) memcpy(data, (char *)a->memory + offset, bytes);
        } else {
            if (!write && c->host_access == CLG_STAGED) code = clg_wait_queue(c);
            if (!code)
                code = write ? cl_write(c->queue, a->mem, offset, bytes, data)
                             : cl_read(c->queue, a->mem, offset, bytes, data);
        }
        if (!code && c->host_access == CLG_STAGED)
            *(write ? &c->counters.bytes_to_device : &c->counters.bytes_to_host) += bytes;
        pthread_mutex_unlock(&c->mutex);
        clg_turn_end(&c->turns);
        clg_affinity_restore(&affinity);
        if (code) status = clg_cl_fail(write ? "clEnqueueWriteBuffer" : "clEnqueueReadBuffer", code);
    }
    clg_handle_return(array);
    return status;
}

clg_status clg_array_write(clg_array array, uint64_t offset, const void *data, uint64_t bytes) {
    return move(array, offset, (void *)data, bytes, true);
}

clg_status clg_array_read(clg_array array, uint64_t offset, void *data, uint64_t bytes) {
    return move(array, offset, data, bytes, false);
}
