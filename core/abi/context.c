/* Contexts: the OpenCL objects, the shared workspace and the pool of device buffers. */
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>

#include "internal.h"

enum { HUGE_PAGE = 2 << 20, TICKETS_BYTES = 32 << 10 };

uint32_t clg_version(void) { return CLG_VERSION; }

static void release_workspace(struct clg_context_s *c) {
    if (!c->workspace) return;
    if (c->host_access == CLG_RAW_POINTER)
        free(c->workspace);
    else
        cl_release_mem(c->workspace);
    c->workspace = NULL;
    c->workspace_bytes = 0;
    c->generation++;
}

static void *new_workspace(struct clg_context_s *c, uint64_t bytes) {
    void *made = NULL;
    int32_t code = 0;
    if (c->host_access != CLG_RAW_POINTER) {
        made = cl_create_buffer(c->context, CL_MEM_READ_WRITE_, bytes, NULL, &code);
        /* some drivers find out on the first use that there is no memory: every later run would fail */
        if (made && c->host_access == CLG_STAGED && cl_write(c->queue, made, 0, 1, "")) {
            cl_release_mem(made);
            return NULL;
        }
        return made;
    }
    if (posix_memalign(&made, bytes < HUGE_PAGE ? 4096 : HUGE_PAGE, bytes)) return NULL;
#ifdef MADV_HUGEPAGE
    /* a graph's arena is walked in large strides: fewer misses of the page tables' cache; only a hint */
    if (bytes >= HUGE_PAGE) madvise(made, bytes, MADV_HUGEPAGE);
#endif
    return made;
}

static void context_free(void *object) {
    struct clg_context_s *c = object;
    clg_runner_free(c);
    clg_transfers_free(c);
    if (c->fork_count == clg_fork_count()) {
        cl_finish(c->queue);
        release_workspace(c);
        if (c->tickets) cl_release_mem(c->tickets);
        for (uint32_t i = 0; i < c->pool_size; i++)
            if (c->pool[i].mem) cl_release_mem(c->pool[i].mem);
        cl_release_queue(c->queue);
        cl_release_context(c->context);
    }
    if (c->fork_count == clg_fork_count()) clg_turns_destroy(&c->turns);
    pthread_mutex_destroy(&c->mutex);
    free(c->pool);
    free(c);
}

clg_status clg_context_adopt(void *cl_context, void *cl_device, void *cl_queue, uint32_t host_access, clg_context *context) {
    (void)cl_device;
    if (!context) return clg_fail(CLG_INVALID_ARGUMENT, "[context] got context NULL, expected a place for the handle");
    *context = NULL;
    if (!cl_context || !cl_queue)
        return clg_fail(CLG_INVALID_ARGUMENT, "[context] got cl_context %p and cl_queue %p, expected both", cl_context, cl_queue);
    if (host_access < CLG_RAW_POINTER || host_access > CLG_STAGED)
        return clg_fail(CLG_INVALID_ARGUMENT, "[context] got host_access %u, expected 1 to 3", host_access);
    struct clg_context_s *c = calloc(1, sizeof *c);
    if (!c) return clg_fail(CLG_OUT_OF_MEMORY, "[context] no memory for a context");
    c->context = cl_context;
    c->queue = cl_queue;
    c->host_access = host_access;
    c->fork_count = clg_fork_count();
    clg_turns_init(&c->turns);
    pthread_mutex_init(&c->mutex, NULL);
    cl_retain_context(cl_context);
    cl_retain_queue(cl_queue);
    char zeros[TICKETS_BYTES] = {0};
    int32_t code = 0;
    c->tickets = cl_create_buffer(c->context, CL_MEM_READ_WRITE_ | CL_MEM_COPY_HOST_PTR_, sizeof zeros, zeros, &code);
    if (!c->tickets) {
        context_free(c);
        return clg_cl_fail("clCreateBuffer of a counter", code);
    }
    *context = clg_handle_new(CLG_KIND_CONTEXT, c, context_free);
    if (!*context) {
        context_free(c);
        return clg_fail(CLG_OUT_OF_MEMORY, "[context] no memory for a handle");
    }
    return CLG_OK;
}

/* The planner answers these two; it runs in Python and ends in clg_context_adopt. */
static clg_status planned_context(clg_status status, clg_context *context) {
    if (status == CLG_OK && !*context)
        return clg_fail(CLG_PLANNER_ERROR, "[context] the planner could not be started, expected a Python with clgraft and what it"
                                           " needs (CLGRAFT_PYTHON names one); stderr has the reason");
    return status;
}

clg_status clg_context_create(const char *selector, clg_context *context) {
    if (!context) return clg_fail(CLG_INVALID_ARGUMENT, "[context] got context NULL, expected a place for the handle");
    *context = NULL;
    return planned_context(clg_py_context_create(selector, NULL, NULL, NULL, context), context);
}

clg_status clg_context_create_from_cl(void *cl_context, void *cl_device, void *cl_queue, clg_context *context) {
    if (!context) return clg_fail(CLG_INVALID_ARGUMENT, "[context] got context NULL, expected a place for the handle");
    *context = NULL;
    if (!cl_context || !cl_device || !cl_queue)
        return clg_fail(CLG_INVALID_ARGUMENT, "[context] got cl_context %p, cl_device %p, cl_queue %p, expected all three",
                        cl_context, cl_device, cl_queue);
    return planned_context(clg_py_context_create(NULL, cl_context, cl_device, cl_queue, context), context);
}

static bool plan_of(void *plan, void *context) { return ((struct clg_plan_s *)plan)->context == context; }
static bool array_of(void *array, void *context) { return ((struct clg_array_s *)array)->context == context; }

clg_status clg_context_destroy(clg_context context) {
    struct clg_context_s *c = clg_handle_acquire(context, CLG_KIND_CONTEXT);
    if (!c) return CLG_INVALID_HANDLE;
    if (c->fork_count == clg_fork_count()) clg_runner_drain(c);
    clg_handle_destroy_if(CLG_KIND_PLAN, plan_of, c);
    clg_handle_destroy_if(CLG_KIND_ARRAY, array_of, c);
    clg_status status = clg_handle_destroy(context, CLG_KIND_CONTEXT);
    clg_handle_drop(c);
    return status;
}

clg_status clg_context_finish(clg_context context) {
    struct clg_context_s *c = clg_handle_acquire(context, CLG_KIND_CONTEXT);
    if (!c) return CLG_INVALID_HANDLE;
    clg_status status = CLG_OK;
    if (c->fork_count != clg_fork_count())
        status = clg_fail(CLG_FORKED, "[context] got a context from before fork(), expected one made in this process");
    else {
        clg_affinity affinity;
        clg_affinity_keep(&affinity);
        clg_turn_begin(&c->turns); /* after all that was called before, and before what others call meanwhile */
        int32_t code = cl_finish(c->queue);
        clg_turn_end(&c->turns);
        clg_affinity_restore(&affinity);
        if (code) status = clg_cl_fail("clFinish", code);
    }
    clg_handle_drop(c);
    return status;
}

clg_status clg_context_counters(clg_context context, clg_counters *counters) {
    struct clg_context_s *c = clg_handle_acquire(context, CLG_KIND_CONTEXT);
    if (!c) return CLG_INVALID_HANDLE;
    if (counters) {
        pthread_mutex_lock(&c->mutex);
        *counters = c->counters;
        pthread_mutex_unlock(&c->mutex);
    }
    clg_handle_drop(c);
    return counters ? CLG_OK : clg_fail(CLG_INVALID_ARGUMENT, "[context] got counters NULL, expected a place for them");
}

static bool release_idle(struct clg_context_s *c);

clg_status clg_context_reserve(struct clg_context_s *c, uint64_t bytes) {
    if (bytes <= c->workspace_bytes) return CLG_OK;
    cl_finish(c->queue); /* launches in flight may still use the old one */
    void *made = new_workspace(c, bytes);
    if (!made) { /* there may be room for one of them, or in the place of buffers that are kept for later runs */
        release_workspace(c);
        do made = new_workspace(c, bytes);
        while (!made && release_idle(c));
    }
    if (!made) /* plans that need less ask again when they run */
        return clg_fail(CLG_OUT_OF_MEMORY, "[plan] got no memory for a workspace of %llu bytes", (unsigned long long)bytes);
    release_workspace(c);
    c->workspace = made;
    c->workspace_bytes = bytes;
    return CLG_OK;
}

/* Sizes are rounded up, to a power of two or to whole 64 MiB, so that nearby shapes share buffers. */
static uint64_t rounded(uint64_t bytes) {
    const uint64_t step = 64u << 20;
    if (bytes > UINT64_MAX - step) return bytes;
    if (bytes > step) return (bytes + step - 1) / step * step;
    uint64_t size = 4096;
    while (size < bytes) size *= 2;
    return size;
}

/* Returns an entry without a buffer, or NULL if there is no memory for more entries. */
static clg_pooled *pool_entry(struct clg_context_s *c) {
    for (uint32_t i = 0; i < c->pool_size; i++)
        if (!c->pool[i].mem) return &c->pool[i];
    uint32_t size = c->pool_size ? 2 * c->pool_size : 64;
    clg_pooled *grown = realloc(c->pool, size * sizeof *grown);
    if (!grown) return NULL;
    memset(grown + c->pool_size, 0, (size - c->pool_size) * sizeof *grown);
    clg_pooled *entry = &grown[c->pool_size];
    c->pool = grown;
    c->pool_size = size;
    return entry;
}

/* Releases one buffer that is not in use; returns whether there was one. */
static bool release_idle(struct clg_context_s *c) {
    for (uint32_t i = 0; i < c->pool_size; i++)
        if (c->pool[i].mem && !c->pool[i].busy) {
            cl_release_mem(c->pool[i].mem);
            c->pool[i] = (clg_pooled){NULL, 0, false};
            c->generation++;
            return true;
        }
    return false;
}

/* A buffer, in the place of those that are kept for later runs if there is no room. Large ones are touched: some drivers
 * find out on the first use that there is no memory. */
cl_object clg_device_memory(struct clg_context_s *c, uint64_t bytes, int32_t *code) {
    const uint64_t large = 64u << 20;
    do {
        cl_object mem = cl_create_buffer(c->context, CL_MEM_READ_WRITE_, bytes, NULL, code);
        if (mem && (bytes < large || c->host_access != CLG_STAGED || !(*code = cl_write(c->queue, mem, 0, 1, "")))) return mem;
        if (mem) cl_release_mem(mem);
    } while (release_idle(c));
    return NULL;
}

cl_object clg_pool_take(struct clg_context_s *c, uint64_t bytes, int32_t *code) {
    const uint64_t size = rounded(bytes);
    clg_pooled *best = NULL; /* the smallest that fits, of at most twice the size */
    for (uint32_t i = 0; i < c->pool_size; i++) {
        clg_pooled *p = &c->pool[i];
        if (p->mem && !p->busy && p->bytes >= size && p->bytes / 2 <= size && (!best || p->bytes < best->bytes)) best = p;
    }
    if (best) {
        best->busy = true;
        c->counters.buffers_reused++;
        return best->mem;
    }
    clg_pooled *entry = pool_entry(c);
    cl_object mem = entry ? clg_device_memory(c, size, code) : NULL;
    if (mem) {
        c->counters.buffers_created++;
        *entry = (clg_pooled){mem, size, true};
    }
    return mem;
}

void clg_pool_give(struct clg_context_s *c, cl_object mem) {
    for (uint32_t i = 0; i < c->pool_size; i++)
        if (c->pool[i].mem == mem) c->pool[i].busy = false;
}
