// The product of backward filter of kernels of one tap, stride 1 and no padding on Hopper's matrix units in TF32: rows of
// dy and of x, whose pixels are the depth, go to local memory as they are, some steps ahead, and are rounded there.
//
// The units read one operand, A, from local memory: work-items round in place what they copied themselves, while the
// products of the step before run. The other one, B, comes from registers, where it is rounded. Either of dy and x is A:
// a work-group makes TILE_M of A's rows and TILE_N of B's, a warpgroup 64 of these.
//
// Both lie in local memory as the units read A: rows of TILE_K pixels, whose vectors of four are permuted by the row's last
// three bits. STAGES steps are there at the same time. The depth is split into parts, whose sums conv_sum adds.

// 1: A is x; 0: A is dy.
#ifndef TURNED
#define TURNED 0
#endif

#if !SPLIT || !PIXEL_VECTORS || TILE_N % 64
#error the product needs parts, vectors of pixels, and warpgroups of 64 rows
#endif

#define ITEMS_OF_ROW (TILE_K / 4)
#define LANES (THREADS / ITEMS_OF_ROW)  // rows that all work-items copy at once
#if TILE_M % LANES || TILE_N % LANES
#error the work-items do not divide the tiles
#endif
#define STEP_TILE ((TILE_M + TILE_N) * TILE_K / 4)  // vectors of a step: A, then B

// Copies to local memory that run while work-items go on; zeros where nothing is.
#if EMULATED
#define COPY_OR_ZERO(to, from, there) *(to) = (there) ? vload4(0, from) : (realv)(0)
#else
#define COPY_OR_ZERO(to, from, there)                                                                            \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint)(size_t)(to)), "l"(from),          \
                 "r"((there) ? 16 : 0)                                                                           \
                 : "memory")
#endif

typedef struct {
    global const real *a, *b;  // the work-item's first pixel of the next step, in its first row of each
    int pixel, at;             // its number, and its place in its plane
    int a_rows, b_rows;        // rows from the first one on
    bool aligned;
} Source;

// Copies the work-item's pixels of so many rows.
IN_PLACE void copy_rows(local realv *tile, global const real *from, const int count, const int rows, const int plane,
                        const bool aligned) {
    const int k = get_local_id(0) % ITEMS_OF_ROW * 4, lane = get_local_id(0) / ITEMS_OF_ROW;
#pragma unroll
    for (int i = 0; i < count; i += LANES) {
        local realv *const to = tile + A_SLOT(k, lane + i) / 4;
        global const real *const row = from + (long)i * plane;
        if (aligned)
            COPY_OR_ZERO(to, row, i < rows);
        else
            *to = i < rows ? vload4(0, row) : (realv)(0);
    }
}

// Copies a step and moves on. a_next, b_next: elements from the end of an image's rows to those of the next image.
IN_PLACE void copy_step(Source *source, local realv *tile, const int depth, const int plane, const long a_next,
                        const long b_next) {
    const bool any = source->pixel < depth;
    copy_rows(tile, source->a, TILE_M, any ? source->a_rows : 0, plane, source->aligned);
    copy_rows(tile + A_TILE, source->b, TILE_N, any ? source->b_rows : 0, plane, source->aligned);
    int at = source->at + TILE_K, images = 0;
    while (at >= plane) {
        at -= plane;
        images++;
    }
    source->pixel += TILE_K;
    source->at = at;
    source->a += TILE_K + images * a_next;
    source->b += TILE_K + images * b_next;
}

// Rounds what the work-item has copied of A.
IN_PLACE void round_rows(local realv *tile) {
    const int k = get_local_id(0) % ITEMS_OF_ROW * 4, lane = get_local_id(0) / ITEMS_OF_ROW;
#pragma unroll
    for (int i = 0; i < TILE_M; i += LANES) {
        local realv *const at = tile + A_SLOT(k, lane + i) / 4;
        const realv four = *at;
        *at = as_float4((uint4)(tf32_of(four.s0), tf32_of(four.s1), tf32_of(four.s2), tf32_of(four.s3)));
    }
}

// What a work-item feeds of a tile of B, for slices of eight of the depth: rows g and g + 8 of its warp's 16, at t and
// t + 4 of the slice.
IN_PLACE void read_rows(float fed[4][4], local const real *tile) {
    const int id = get_local_id(0), lane = id % 32, first = id / 32 * 16;
#pragma unroll
    for (int s = 0; s < 4; s++) {
#if EMULATED
        for (int i = 0; i < 4; i++) fed[s][i] = tile[A_SLOT(8 * s + lane % 4 + i / 2 * 4, first + lane / 4 + i % 2 * 8)];
#else
        local const real *const row = tile + A_SLOT(8 * s + lane / 16 * 4, first + lane % 16);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=f"(fed[s][0]), "=f"(fed[s][1]), "=f"(fed[s][2]), "=f"(fed[s][3])
                     : "r"((uint)(size_t)row)
                     : "memory");
#endif
    }
}

#if FIXED_GROUP
__attribute__((reqd_work_group_size(THREADS, 1, 1)))
#endif
kernel void conv_gemm(CONST_TENSOR(source), CONST_TENSOR(dy), TENSOR_OF(real, sums), const int has_bias,
                      const int accumulate, const int rows, const int columns, const int depth, const int parts,
                      const int steps_of_part, const int groups, const Grid grid, const Target target) {
    const int a_count = TURNED ? columns : rows, b_count = TURNED ? rows : columns;
    const int a_tiles = (a_count + TILE_M - 1) / TILE_M, b_tiles = (b_count + TILE_N - 1) / TILE_N;
    uint place = get_group_id(0);
    const int a_first = place % a_tiles * TILE_M;
    place /= a_tiles;
    const int b_first = place % b_tiles * TILE_N;
    place /= b_tiles;
    const int part = place % parts, group = place / parts, first = part * steps_of_part;
    const int steps = min((depth + TILE_K - 1) / TILE_K - first, steps_of_part);
    const int id = get_local_id(0), plane = SOURCE_PLANE;
    local realv tiles[STAGES * STEP_TILE] TILE_ALIGNMENT;
    MICRO_LOCALS;

    const int pixel = first * TILE_K + id % ITEMS_OF_ROW * 4, lane = id / ITEMS_OF_ROW;
    const long a_image = (long)groups * a_count * plane, b_image = (long)groups * b_count * plane;
    Source next;
    next.pixel = pixel;
    next.at = pixel % plane;
    next.a_rows = a_count - a_first - lane;
    next.b_rows = b_count - b_first - lane;
    next.a = (TURNED ? OPEN(source) : OPEN(dy)) + pixel / plane * a_image +
             ((long)group * a_count + a_first + lane) * plane + next.at;
    next.b = (TURNED ? OPEN(dy) : OPEN(source)) + pixel / plane * b_image +
             ((long)group * b_count + b_first + lane) * plane + next.at;
    next.aligned = (ulong)OPEN(source) % sizeof(realv) == 0 && (ulong)OPEN(dy) % sizeof(realv) == 0;
    const long a_next = a_image - plane, b_next = b_image - plane;

    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps) copy_step(&next, tiles + i * STEP_TILE, depth, plane, a_next, b_next);
        COPIES_COMMIT;
    }
    COPIES_WAIT(STAGES - 2);
    round_rows(tiles);
    FENCE_TILES;
    barrier(CLK_LOCAL_MEM_FENCE);
    float fed[4][4], sums_of_item[SUMS];
    read_rows(fed, (local const real *)(tiles + A_TILE));
    int now = 0;
    for (int step = 0; step < steps; step++) {
        const int later = now + 1 == STAGES ? 0 : now + 1, last = now == 0 ? STAGES - 1 : now - 1;
        COPIES_WAIT(STAGES - 3);
        barrier(CLK_LOCAL_MEM_FENCE);  // the next step is there, this one is rounded, and nobody needs the last one
        MULTIPLY_FED(sums_of_item, fed, tiles + now * STEP_TILE, step);
        if (step + STAGES - 1 < steps) copy_step(&next, tiles + last * STEP_TILE, depth, plane, a_next, b_next);
        COPIES_COMMIT;
        round_rows(tiles + later * STEP_TILE);  // not used after the last step
        read_rows(fed, (local const real *)(tiles + later * STEP_TILE + A_TILE));
        FENCE_TILES;
        WGMMA_WAIT(sums_of_item);
        now = later;
    }

    global real *const to = OPEN(sums) + ((long)part * groups + group) * rows * columns;
    const int a_row = a_first + id % 4 * 2, b_row = b_first + id / 32 * 16 + id % 32 / 4;
    const bool pairs = TURNED && columns % 2 == 0 && (ulong)to % sizeof(Pair) == 0;
#pragma unroll
    for (int i = 0; i < SUMS; i += 2) {  // sums of two neighbouring rows of A
        const int a = a_row + i / 4 * 8, b = b_row + i / 2 % 2 * 8;
        if (a >= a_count || b >= b_count) continue;
        global real *const at = to + (TURNED ? (long)b * columns + a : (long)a * columns + b);
        if (pairs) {
            *(global Pair *)at = (Pair)(sums_of_item[i], sums_of_item[i + 1]);
            continue;
        }
        *at = sums_of_item[i];
        if (a + 1 < a_count) at[TURNED ? 1 : columns] = sums_of_item[i + 1];
    }
}
