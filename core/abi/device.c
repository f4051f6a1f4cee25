/* The memory of a context: the workspace that its plans share, and the pool of device buffers. */
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>

#include "device.h"
#include "errors.h"
#include "handles.h"

enum { HUGE_PAGE = 2 << 20 };

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
        return clg_fail(
            CLG_OUT_OF_MEMORY, "[plan] got no memory for a workspace of %llu bytes", (unsigned long long)bytes);
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

/* A buffer, in the place of those that are kept for later runs if there is no room. Large ones are touched: some
 * drivers find out on the first use that there is no memory. */
cl_object clg_device_memory(struct clg_context_s *c, uint64_t bytes, int32_t *code) {
    const uint64_t large = 64u << 20;
    do {
        cl_object mem = cl_create_buffer(c->context, CL_MEM_READ_WRITE_, bytes, NULL, code);
        if (mem && (bytes < large || c->host_access != CLG_STAGED || !(*code = cl_write(c->queue, mem, 0, 1, ""))))
            return mem;
        if (mem) cl_release_mem(mem);
    } while (release_idle(c));
    return NULL;
}

cl_object clg_pool_take(struct clg_context_s *c, uint64_t bytes, int32_t *code) {
    const uint64_t size = rounded(bytes);
    clg_pooled *best = NULL; /* the smallest that fits, of at most twice the size */
    for (uint32_t i = 0; i < c->pool_size; i++) {
        clg_pooled *p = &c->pool[i];
        if (p->mem && !p->busy && p->bytes >= size && p->bytes / 2 <= size && (!best || p->bytes < best->bytes))
            best = p;
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

void clg_memory_free(struct clg_context_s *c) {
    if (c->fork_count == clg_fork_count()) {
        release_workspace(c);
        for (uint32_t i = 0; i < c->pool_size; i++)
            if (c->pool[i].mem) cl_release_mem(c->pool[i].mem);
    }
    free(c->pool);
}
