/* Handles as numbers: (generation, slot, kind) packed into a pointer-sized value that is looked up, never followed.
 * A slot's generation changes when its object goes, so old handles are recognised. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "errors.h"
#include "handles.h"

typedef struct slot {
    void *object;
    clg_free_fn release;
    uint32_t generation, kind, users;
    bool alive;
} slot;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static slot *slots;
static uint32_t slot_count;
static unsigned fork_count;

/* The mutex is not held over the fork, as it often is: a host may stop its threads first, as MXNet does, and those that
 * run a plan need it to finish. Every change leaves the table readable, and the child uses it only to refuse. */
static void after_fork_in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    fork_count++;
}
static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

unsigned clg_fork_count(void) { return fork_count; }

static void *pack(uint32_t index) {
    return (void *)(uintptr_t)((uint64_t)slots[index].generation << 32 | (uint64_t)index << 4 | slots[index].kind << 1 |
                               1u);
}

/* Mutex held. The slot's index, or UINT32_MAX. */
static uint32_t find(const void *handle, uint32_t kind) {
    uint64_t value = (uint64_t)(uintptr_t)handle;
    uint32_t index = (uint32_t)value >> 4;
    if (index >= slot_count || !slots[index].alive || slots[index].kind != kind) return UINT32_MAX;
    return pack(index) == handle ? index : UINT32_MAX;
}

static clg_status refuse(const void *handle, uint32_t kind) {
    static const char *const names[] = {"", "clg_context", "clg_plan", "clg_array", "clg_event", "clg_session"};
    return clg_fail(
        CLG_INVALID_HANDLE, "[runtime] got handle %p, expected a live %s of this library", handle, names[kind]);
}

void *clg_handle_new(uint32_t kind, void *object, clg_free_fn release) {
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&mutex);
    uint32_t index = 0;
    while (index < slot_count && slots[index].object) index++;
    if (index == slot_count) {
        uint32_t more = slot_count ? slot_count * 2 : 64;
        slot *grown = malloc(more * sizeof *grown), *outgrown = slots;
        if (!grown) {
            pthread_mutex_unlock(&mutex);
            return NULL;
        }
        if (slot_count) memcpy(grown, slots, slot_count * sizeof *grown);
        for (uint32_t i = slot_count; i < more; i++)
            grown[i] = (slot){.generation = (uint32_t)(clock() * 2654435761u + i * 40503u) >> 2};
        slots = grown;
        slot_count = more;
        free(outgrown);
    }
    slots[index] = (slot){object, release, (slots[index].generation + 1) & 0x7fffffffu, kind, 0, true};
    void *handle = pack(index);
    pthread_mutex_unlock(&mutex);
    return handle;
}

void *clg_handle_acquire(const void *handle, uint32_t kind) {
    void *object = NULL;
    pthread_mutex_lock(&mutex);
    uint32_t index = find(handle, kind);
    if (index != UINT32_MAX) {
        slots[index].users++;
        object = slots[index].object;
    }
    pthread_mutex_unlock(&mutex);
    if (!object) refuse(handle, kind);
    return object;
}

/* Mutex held; frees outside of it, since freeing a plan drops its context. */
static void settle(uint32_t index) {
    slot gone = slots[index];
    if (gone.alive || gone.users) {
        pthread_mutex_unlock(&mutex);
        return;
    }
    slots[index].object = NULL;
    pthread_mutex_unlock(&mutex);
    gone.release(gone.object);
}

void clg_handle_drop(void *object) {
    pthread_mutex_lock(&mutex);
    for (uint32_t i = 0; i < slot_count; i++)
        if (slots[i].object == object) {
            slots[i].users--;
            settle(i);
            return;
        }
    pthread_mutex_unlock(&mutex);
}

void *clg_handle_object(const void *handle) {
    pthread_mutex_lock(&mutex);
    void *object = slots[(uint32_t)(uint64_t)(uintptr_t)handle >> 4].object;
    pthread_mutex_unlock(&mutex);
    return object;
}

void clg_handle_return(const void *handle) {
    uint32_t index = (uint32_t)(uint64_t)(uintptr_t)handle >> 4;
    pthread_mutex_lock(&mutex);
    slots[index].users--;
    settle(index);
}

clg_status clg_handle_destroy(const void *handle, uint32_t kind) {
    pthread_mutex_lock(&mutex);
    uint32_t index = find(handle, kind);
    if (index == UINT32_MAX) {
        pthread_mutex_unlock(&mutex);
        return refuse(handle, kind);
    }
    slots[index].alive = false;
    settle(index);
    return CLG_OK;
}

void clg_handle_destroy_if(uint32_t kind, bool (*test)(void *, void *), void *with) {
    for (uint32_t i = 0;; i++) {
        pthread_mutex_lock(&mutex);
        if (i >= slot_count) {
            pthread_mutex_unlock(&mutex);
            return;
        }
        if (slots[i].object && slots[i].alive && slots[i].kind == kind && test(slots[i].object, with)) {
            slots[i].alive = false;
            settle(i);
        } else {
            pthread_mutex_unlock(&mutex);
        }
    }
}
