/* Transfers of a run on a device with memory of its own. Host arrays travel through slots of pinned memory, since
 * drivers move ordinary memory at a sixth of the bus's speed, and a registration of it goes stale when its pages are
 * replaced. The arrays of a direction form one stream: down in the order in which launches first use them, up in that
 * of their last use; a slot's worth of it is one transfer. Streams of more than a slot have queues of their own, so
 * that they move while kernels run: a slot travels down once threads have filled it, or at the latest when a launch
 * waits for its inputs, and up after the last launch that uses it. A run without results in host memory ends when its
 * inputs are in slots; these, and the device memory that they go to, are free again once the device has passed. */
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "errors.h"
#include "handles.h"
#include "transfer.h"
#include "wait.h"

#ifndef CLG_SLOT_BYTES
#define CLG_SLOT_BYTES (2 << 20) /* tests take less; a multiple of ALIGNMENT */
#endif
enum { SLOT = CLG_SLOT_BYTES, SLOTS = 32, SMALL = SLOT / 32, ALIGNMENT = 256, COPYING = 8, LATE = 16 };

typedef struct slot {
    cl_object mem; /* pinned */
    char *memory;  /* where it is mapped */
    cl_object event;
    uint32_t pending; /* copies that threads still have to do */
} slot;

typedef struct stream {
    cl_object queue; /* of its own, made on first use */
    slot slots[SLOTS];
    clg_piece *pieces;
    uint32_t piece_count;
    uint32_t used;   /* pieces that the launches so far need (down) or have finished (up) */
    uint32_t copied; /* pieces whose copies are all started */
    uint64_t bytes;
    uint32_t slot_count;       /* of this run */
    uint32_t begin;            /* the first of them; others may travel for runs that have returned */
    uint32_t filled;           /* slots that copies were started for (down) */
    uint32_t written;          /* slots that launches have completed (up) */
    uint32_t mark, mark_count; /* markers that slots wait for (up) */
    uint32_t sent, got;        /* slots that the driver has; that were emptied (up) */
    uint32_t awaited;          /* slots that the kernels' queue has waited for (down) */
    cl_object on;              /* the queue of this run's transfers */
} stream;

/* Device memory of a run that has returned, and an event after which it is free. */
typedef struct late {
    cl_object mem, event;
} late;

struct clg_transfers {
    stream down, up;
    struct clg_copier *copier;
    late late[LATE];
    uint32_t late_count; /* oldest first */
};

static void release_event(cl_object *event) {
    if (*event) cl_release_event(*event);
    *event = NULL;
}

static void free_stream(struct clg_context_s *c, stream *s) {
    for (uint32_t i = 0; i < SLOTS; i++) {
        slot *k = &s->slots[i];
        release_event(&k->event);
        if (k->memory) cl_unmap(c->queue, k->mem, k->memory);
        if (k->mem) cl_release_mem(k->mem);
    }
    if (s->queue) cl_release_queue(s->queue);
}

void clg_transfers_free(struct clg_context_s *c) {
    struct clg_transfers *t = c->transfers;
    if (!t) return;
    if (c->fork_count == clg_fork_count()) {
        if (t->down.queue) cl_finish(t->down.queue);
        cl_finish(c->queue);
        for (uint32_t i = 0; i < t->late_count; i++) release_event(&t->late[i].event);
        free_stream(c, &t->down);
        free_stream(c, &t->up);
        cl_finish(c->queue);
    }
    clg_copier_free(t->copier);
    free(t);
    c->transfers = NULL;
}

static slot *slot_of(stream *s, uint32_t number) { return &s->slots[(s->begin + number) % SLOTS]; }

static bool is_small(const clg_argument *a) { return a->bytes <= SMALL; }

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Appends the part of a stream that one argument is. */
static void append(stream *s, const clg_buffer *b, const clg_argument *a, clg_resolved *r, uint32_t launch) {
    clg_piece *piece = &s->pieces[s->piece_count++];
    *piece = (clg_piece){
        .host = (char *)b->handle + b->offset,
        .bytes = a->bytes,
        .position = s->bytes,
        .resolved = r,
        .launch = launch};
    s->bytes += aligned(a->bytes);
}

enum { NOWHERE, DOWN, UP, BOTH };

static uint32_t way(const struct clg_context_s *c, const clg_argument *a, const clg_buffer *b, const clg_resolved *r) {
    if (c->host_access != CLG_STAGED || b->kind != CLG_HOST || b->mode == CLG_SKIP || !a->bytes || r->current)
        return NOWHERE;
    return a->role == CLG_IN ? DOWN : a->role == CLG_INOUT || b->mode == CLG_ACCUMULATE ? BOTH : UP;
}

static bool is_done(cl_object event) {
    int32_t state = CL_COMPLETE_ + 1;
    return !cl_event_status(event, &state) && state <= CL_COMPLETE_;
}

/* Gives back the memory of earlier runs that the device has finished; with `most` below their number it waits. */
static void take_back(struct clg_context_s *c, uint32_t most) {
    struct clg_transfers *t = c->transfers;
    uint32_t done = 0;
    for (; done < t->late_count; done++) {
        late *l = &t->late[done];
        if (t->late_count - done > most)
            clg_wait_event(c, NULL, l->event);
        else if (!is_done(l->event))
            break;
        clg_pool_give(c, l->mem);
        release_event(&l->event);
    }
    t->late_count -= done;
    memmove(t->late, t->late + done, t->late_count * sizeof *t->late);
}

/* Gives back the memory of a run after what is queued by now. */
static void give_late(struct clg_context_s *c, cl_object mem) {
    struct clg_transfers *t = c->transfers;
    take_back(c, LATE - 1);
    late *l = &t->late[t->late_count];
    *l = (late){mem, NULL};
    if (cl_marker(c->queue, &l->event)) {
        clg_wait_queue(c);
        clg_pool_give(c, mem);
    } else {
        t->late_count++;
    }
}

/* Takes device memory for a group of arguments that lie one after another. */
static clg_status take_block(struct clg_plan_s *p, uint32_t block, uint64_t bytes) {
    int32_t code = 0;
    p->blocks[block] = NULL;
    if (!bytes) return CLG_OK;
    p->blocks[block] = clg_pool_take(p->context, bytes, &code);
    if (!p->blocks[block] && p->context->transfers->late_count) {
        take_back(p->context, 0);
        p->blocks[block] = clg_pool_take(p->context, bytes, &code);
    }
    if (p->blocks[block]) return CLG_OK;
    if (code && code != -4 && code != -6 && code != -61) return clg_cl_fail("clCreateBuffer", code);
    return clg_fail(CLG_OUT_OF_MEMORY, "[run] got no device memory for the arrays of a run (%llu bytes)",
                    (unsigned long long)bytes);
}

static void add_pieces(struct clg_plan_s *p, const clg_buffer *buffers, bool small, bool up, uint64_t *sizes) {
    struct clg_transfers *t = p->context->transfers;
    for (uint32_t k = 0; k < p->argument_count; k++) {
        uint32_t i = up ? p->by_last[k] : p->by_first[k];
        const clg_argument *a = &p->arguments[i];
        clg_resolved *r = &p->resolved[i];
        uint32_t to = way(p->context, a, &buffers[i], r);
        if (to == NOWHERE || is_small(a) != small || to == (up ? DOWN : UP)) continue;
        if (r->copy && p->context->queued) { /* kernels of an earlier run may still read it */
            r->lands = true;
            r->landed = sizes[to];
            sizes[to] += aligned(a->bytes);
        }
        if (!r->copy && !(up && to == BOTH)) { /* an array that goes both ways has its place by now */
            r->block = to;
            r->offset = sizes[to];
            sizes[to] += aligned(a->bytes);
        }
        if (up)
            append(&t->up, &buffers[i], a, r, p->last_use[i]);
        else
            append(&t->down, &buffers[i], a, r, small ? 0 : p->first_use[i]);
    }
}

static void begin_stream(stream *s, clg_piece *pieces) {
    s->pieces = pieces;
    s->piece_count = s->used = s->copied = s->filled = s->written = s->mark = s->mark_count = s->sent = s->got =
        s->awaited = s->slot_count = 0;
    s->bytes = 0;
}

/* A queue of its own where there is more than a slot; without one, transfers go in line with the kernels. */
static void choose_queue(struct clg_context_s *c, stream *s) {
    s->slot_count = (uint32_t)((s->bytes + SLOT - 1) / SLOT);
    if (s->slot_count > 1 && !s->queue) {
        cl_object device = NULL;
        int32_t code = cl_queue_device(c->queue, &device);
        if (!code) s->queue = cl_create_queue(c->context, device, &code);
    }
    s->on = s->slot_count > 1 && s->queue ? s->queue : c->queue;
}

static clg_status prepare_slot(struct clg_context_s *c, stream *s, slot *k) {
    release_event(&k->event);
    if (k->memory) return CLG_OK;
    int32_t code = 0;
    if (!k->mem) k->mem = cl_create_buffer(c->context, CL_MEM_READ_WRITE_ | CL_MEM_ALLOC_HOST_PTR_, SLOT, NULL, &code);
    if (k->mem) k->memory = cl_map(s->on, k->mem, CL_MAP_READ_ | CL_MAP_WRITE_, SLOT, &code);
    return k->memory ? CLG_OK : clg_cl_fail("pinned memory for transfers", code ? code : -6);
}

static clg_status wait_for(struct clg_context_s *c, const stream *s, cl_object event) {
    int32_t code = clg_wait_event(c, s->on, event);
    return code ? clg_cl_fail("clWaitForEvents", code) : CLG_OK;
}

/* Copies the parts of a slot between its memory and the host's arrays, by threads. */
static void copy_slot(struct clg_transfers *t, stream *s, uint32_t number, bool up) {
    slot *k = slot_of(s, number);
    const uint64_t begin = (uint64_t)number * SLOT, end = begin + SLOT;
    uint32_t i = s->copied;
    for (; i < s->piece_count && s->pieces[i].position < end; i++) {
        const clg_piece *piece = &s->pieces[i];
        uint64_t from = piece->position > begin ? piece->position : begin;
        uint64_t to = piece->position + piece->bytes < end ? piece->position + piece->bytes : end;
        char *host = piece->host + (from - piece->position), *pinned = k->memory + (from - begin);
        clg_copy_start(t->copier, up ? host : pinned, up ? pinned : host, to - from, &k->pending);
    }
    while (s->copied < s->piece_count && s->pieces[s->copied].position + aligned(s->pieces[s->copied].bytes) <= end)
        s->copied++;
}

/* Starts copies into all slots that are free, but for the one whose transfer the next launch waits for; with `wait`
 * into the next one at least. */
static clg_status fill(struct clg_context_s *c, bool wait) {
    struct clg_transfers *t = c->transfers;
    stream *s = &t->down;
    for (; s->filled < s->slot_count && s->filled < s->sent + SLOTS - 1; s->filled++) {
        slot *k = slot_of(s, s->filled);
        if (k->event) { /* of the transfer that used it before */
            if (!(wait && s->filled == s->sent) && !is_done(k->event)) break;
            clg_status status = wait_for(c, s, k->event);
            if (status) return status;
        }
        clg_status status = prepare_slot(c, s, k);
        if (status) return status;
        copy_slot(t, s, s->filled, false);
    }
    return CLG_OK;
}

/* Small arrays come first on the way down and last on the way up, each direction's in one place
 * of the device's memory. */
clg_status clg_transfers_begin(struct clg_plan_s *p, const clg_buffer *buffers) {
    struct clg_context_s *c = p->context;
    if (c->host_access != CLG_STAGED) return CLG_OK;
    if (!c->transfers) c->transfers = calloc(1, sizeof *c->transfers);
    if (c->transfers && !c->transfers->copier) c->transfers->copier = clg_copier_new();
    struct clg_transfers *t = c->transfers;
    if (!t || !t->copier) return clg_fail(CLG_OUT_OF_MEMORY, "[run] no memory for transfers");
    take_back(c, LATE);
    uint64_t sizes[4] = {0};
    begin_stream(&t->down, p->pieces);
    begin_stream(&t->up, p->pieces + p->argument_count);
    add_pieces(p, buffers, true, false, sizes);
    add_pieces(p, buffers, false, false, sizes);
    add_pieces(p, buffers, false, true, sizes);
    add_pieces(p, buffers, true, true, sizes);
    clg_status status = CLG_OK;
    for (uint32_t block = DOWN; block <= BOTH && !status; block++) status = take_block(p, block, sizes[block]);
    if (status) return status;
    for (uint32_t i = 0; i < p->argument_count; i++) {
        clg_resolved *r = &p->resolved[i];
        if (r->lands) r->landing = p->blocks[DOWN];
        if (!r->block) continue;
        r->mem = p->blocks[r->block];
        r->item = clg_dtype_bytes(p->arguments[i].dtype);
        r->offset /= r->item;
    }
    choose_queue(c, &t->down);
    choose_queue(c, &t->up);
    return fill(c, false); /* threads copy while the first launches are queued */
}

static cl_object device_memory(const clg_piece *piece) {
    return piece->resolved->lands ? piece->resolved->landing : piece->resolved->mem;
}

static uint64_t device_place(const clg_piece *piece) {
    return piece->resolved->lands ? piece->resolved->landed : piece->resolved->offset * piece->resolved->item;
}

/* Hands a slot to the driver, on the way up after an event or NULL: one command for each range of the device's
 * memory that it covers. */
static clg_status send_slot(struct clg_context_s *c, stream *s, uint32_t number, cl_object *after, bool up) {
    slot *k = slot_of(s, number);
    const uint64_t begin = (uint64_t)number * SLOT, end = begin + SLOT;
    uint32_t i = 0, high = s->piece_count;
    while (i < high) { /* the first piece that ends past the beginning */
        uint32_t middle = (i + high) / 2;
        if (s->pieces[middle].position + aligned(s->pieces[middle].bytes) <= begin)
            i = middle + 1;
        else
            high = middle;
    }
    while (i < s->piece_count && s->pieces[i].position < end) {
        const clg_piece *first = &s->pieces[i], *last = first;
        const uint64_t shift = device_place(first) - first->position; /* the same in all of a range */
        for (i++; i < s->piece_count && s->pieces[i].position < end; i++) {
            const clg_piece *next = &s->pieces[i];
            if (device_memory(next) != device_memory(first) || device_place(next) - next->position != shift) break;
            last = next;
        }
        uint64_t from = first->position > begin ? first->position : begin;
        uint64_t to = last->position + last->bytes < end ? last->position + last->bytes : end;
        bool final = i >= s->piece_count || s->pieces[i].position >= end;
        cl_object *event = final ? &k->event : NULL;
        char *pinned = k->memory + (from - begin);
        cl_object mem = device_memory(first);
        int32_t code = up ? cl_read_after(s->on, mem, from + shift, to - from, pinned, after ? 1 : 0, after, event)
                          : cl_write_after(s->on, mem, from + shift, to - from, pinned, event);
        if (code) return clg_cl_fail(up ? "clEnqueueReadBuffer" : "clEnqueueWriteBuffer", code);
    }
    if (s->on != c->queue) cl_flush(s->on);
    return CLG_OK;
}

/* Sends the first `count` slots down. */
static clg_status send_down(struct clg_context_s *c, uint32_t count) {
    struct clg_transfers *t = c->transfers;
    stream *s = &t->down;
    clg_status status = CLG_OK;
    while (s->sent < count && !status) {
        status = fill(c, true);
        if (status) break;
        slot *k = slot_of(s, s->sent);
        clg_copy_wait(t->copier, &k->pending);
        status = send_slot(c, s, s->sent, NULL, false);
        s->sent++;
    }
    return status ? status : fill(c, false);
}

/* Sends the slots whose copies have ended by now, while launches that do not need them are queued. */
static clg_status send_ready(struct clg_context_s *c) {
    stream *s = &c->transfers->down;
    clg_status status = CLG_OK;
    while (s->on != c->queue && s->sent < s->filled && clg_copy_done(&slot_of(s, s->sent)->pending) && !status)
        status = send_down(c, s->sent + 1);
    return status;
}

/* What the next command of the kernels' queue waits for, which needs the first slots; NULL: for nothing more. */
static cl_object arrival(struct clg_context_s *c, uint32_t slots) {
    stream *s = &c->transfers->down;
    if (s->on == c->queue || slots <= s->awaited) return NULL;
    s->awaited = slots;
    /* a slot that was filled once more has been waited for here */
    return slots + SLOTS <= s->filled ? NULL : slot_of(s, slots - 1)->event;
}

static uint32_t slots_of(const clg_piece *piece) { return (uint32_t)((piece->position + piece->bytes - 1) / SLOT) + 1; }

/* Copies what has come to other memory to its place, in line with the kernels. */
static clg_status move_on(struct clg_context_s *c, const clg_piece *piece) {
    const clg_resolved *r = piece->resolved;
    if (!r->lands) return CLG_OK;
    cl_object wait = arrival(c, slots_of(piece));
    int32_t code = cl_copy_after(c->queue, r->landing, r->mem, r->landed, 0, piece->bytes, wait ? 1 : 0, &wait);
    return code ? clg_cl_fail("clEnqueueCopyBuffer", code) : CLG_OK;
}

clg_status clg_transfers_before(struct clg_plan_s *p, uint32_t launch, cl_object *wait) {
    struct clg_context_s *c = p->context;
    struct clg_transfers *t = c->transfers;
    *wait = NULL;
    if (!t) return CLG_OK;
    stream *s = &t->down;
    uint32_t needed = 0;
    const uint32_t first = s->used;
    while (s->used < s->piece_count && s->pieces[s->used].launch <= launch) needed = slots_of(&s->pieces[s->used++]);
    clg_status status = needed > s->sent ? send_down(c, needed) : send_ready(c);
    for (uint32_t i = first; i < s->used && !status; i++) status = move_on(c, &s->pieces[i]);
    if (!status) *wait = arrival(c, needed);
    return status;
}

/* Copies what has arrived in a slot to the host's arrays. No array is written before all have been
 * read: they may overlap. */
static clg_status empty_slot(struct clg_context_s *c) {
    struct clg_transfers *t = c->transfers;
    stream *s = &t->up;
    clg_status status = send_down(c, t->down.slot_count);
    for (uint32_t i = 0; i < SLOTS; i++) clg_copy_wait(t->copier, &t->down.slots[i].pending);
    slot *k = slot_of(s, s->got);
    if (!status) status = wait_for(c, s, k->event);
    if (status) return status;
    copy_slot(t, s, s->got, true);
    s->got++;
    return CLG_OK;
}

/* Sends slots up, the first `count`. Where no slot is free and the oldest has not arrived, the rest waits for a later
 * call, unless all must go: launches come first. */
static clg_status send_up(struct clg_plan_s *p, uint32_t count, bool all) {
    struct clg_context_s *c = p->context;
    struct clg_transfers *t = c->transfers;
    stream *s = &t->up;
    clg_status status = CLG_OK;
    while (s->sent < count && !status) {
        if (s->sent >= s->got + SLOTS - COPYING) {
            if (!all && !is_done(slot_of(s, s->got)->event)) break;
            status = empty_slot(c);
            continue;
        }
        slot *k = slot_of(s, s->sent);
        clg_copy_wait(t->copier, &k->pending);
        status = prepare_slot(c, s, k);
        if (status) break;
        while (s->mark < s->mark_count && p->marks[s->mark].slots <= s->sent) s->mark++;
        cl_object *written = s->mark < s->mark_count ? &p->marks[s->mark].event : NULL;
        status = send_slot(c, s, s->sent, written, true);
        if (!status) s->sent++;
    }
    return status;
}

/* Drivers let a transfer and kernels overlap where the kernels were queued first. So a slot travels after the launch
 * that follows the one that completes it; a marker between them is what it waits for. */
clg_status clg_transfers_after(struct clg_plan_s *p, uint32_t launch, bool last) {
    struct clg_context_s *c = p->context;
    struct clg_transfers *t = c->transfers;
    if (!t) return CLG_OK;
    stream *s = &t->up;
    if (s->slot_count <= 1 && !last) return CLG_OK; /* it goes in line with the kernels */
    clg_status status = send_up(p, s->written, false);
    while (s->used < s->piece_count && s->pieces[s->used].launch <= launch) s->used++;
    uint32_t written =
        last || s->used == s->piece_count ? s->slot_count : (uint32_t)(s->pieces[s->used].position / SLOT);
    if (!status && written > s->written && s->on != c->queue) {
        clg_mark *mark = &p->marks[s->mark_count];
        *mark = (clg_mark){NULL, written};
        int32_t code = cl_marker(c->queue, &mark->event);
        if (code) return clg_cl_fail("clEnqueueMarker", code);
        s->mark_count++;
        cl_flush(c->queue);
    }
    s->written = written;
    return last && !status ? send_up(p, s->slot_count, true) : status;
}

clg_status clg_transfers_end(struct clg_plan_s *p, clg_status status, bool waits) {
    struct clg_context_s *c = p->context;
    struct clg_transfers *t = c->transfers;
    if (!t) return status;
    if (!status) status = send_down(c, t->down.slot_count); /* what no launch uses */
    for (uint32_t i = t->down.used; i < t->down.piece_count && !status; i++) status = move_on(c, &t->down.pieces[i]);
    cl_object rest = status ? NULL : arrival(c, t->down.slot_count);
    if (rest) status = wait_for(c, &t->down, rest);
    if (!status) status = clg_transfers_after(p, UINT32_MAX, true);
    if (!status) cl_flush(c->queue);
    while (!status && t->up.got < t->up.sent) status = empty_slot(c);
    if (!status) {
        for (uint32_t i = 0; i < p->argument_count; i++) {
            const clg_argument *a = &p->arguments[i];
            uint32_t to = p->resolved[i].block;
            if (to == DOWN || to == BOTH || (p->resolved[i].copy && !p->resolved[i].current))
                c->counters.bytes_to_device += a->bytes;
            if (to == UP || to == BOTH) c->counters.bytes_to_host += a->bytes;
        }
    } else { /* nothing may still use the pinned memory, or the caller's */
        if (t->down.queue) cl_finish(t->down.queue);
        cl_finish(c->queue);
        if (t->up.queue) cl_finish(t->up.queue);
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        clg_copy_wait(t->copier, &t->down.slots[i].pending);
        clg_copy_wait(t->copier, &t->up.slots[i].pending);
        if (waits || status) release_event(&t->down.slots[i].event); /* else the next run asks for it */
        release_event(&t->up.slots[i].event);
    }
    for (uint32_t block = DOWN; block <= BOTH; block++) {
        if (p->blocks[block] && (waits || status)) clg_pool_give(c, p->blocks[block]);
        if (p->blocks[block] && !waits && !status) give_late(c, p->blocks[block]);
        p->blocks[block] = NULL;
    }
    t->down.begin = waits || status ? 0 : (t->down.begin + t->down.slot_count) % SLOTS;
    for (uint32_t i = 0; i < t->up.mark_count; i++) release_event(&p->marks[i].event);
    begin_stream(&t->down, NULL);
    begin_stream(&t->up, NULL);
    return status;
}
