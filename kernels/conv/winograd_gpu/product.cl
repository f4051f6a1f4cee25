// The products of Winograd's convolution on GPUs: for each of many matrices C (rows, columns) = A (rows, depth) * B
// (depth, columns), on the micro kernel of gpu_gemm (conv/gemm_gpu/tile.cl) and with its tiles.
//
//                    A                   B                   C                  depth
// forward and data   U [depth][rows]     V [depth][columns]  M [rows][columns]  channels
// backward filter    Y [rows][depth]     V [columns][depth]  [rows][columns]    tiles; DEPTH_INNER
//
// All matrices are padded to whole tiles, and what pads the depth is zero, so that nothing is checked here. A work-group
// makes a tile of C of a part of the depth; the parts are matrices of their own, [part][matrix][rows][columns].

#ifndef DEPTH_INNER
#define DEPTH_INNER 0
#endif
#ifndef FIXED_GROUP
#define FIXED_GROUP 1
#endif
#ifndef SCALAR_ITEMS
#define SCALAR_ITEMS 0
#endif

#define THREADS (TILE_M / ITEM_M * (TILE_N / ITEM_N))
#define A_FETCHES (TILE_M * TILE_K / 4 / THREADS)
#define B_FETCHES (TILE_N * TILE_K / 4 / THREADS)
#if TILE_M * TILE_K / 4 % THREADS || TILE_N * TILE_K / 4 % THREADS
#error the work-items do not divide the tiles
#endif

#if DEPTH_INNER
#define PAD 4  // columns of local memory are written
#endif
#include "conv/gemm_gpu/tile.cl"

typedef struct {
    realv a[A_FETCHES], b[B_FETCHES];
} Fetched;

// Fetches a tile of TILE_K steps: `width` neighbouring rows or columns of the product. from: its first element; pitch: of
// the matrix.
#if DEPTH_INNER
#define QUADS (TILE_K / 4)
#define FETCH(to, from, width, fetches, pitch) \
    _Pragma("unroll") for (int i = 0; i < (fetches); i++) { \
        const int v = id + i * THREADS; \
        to[i] = *(global const realv *)((from) + (long)(v / QUADS) * (pitch) + v % QUADS * 4); \
    }
#define PLACE(to, values, width, row_vectors, fetches) \
    _Pragma("unroll") for (int i = 0; i < (fetches); i++) { \
        const int v = id + i * THREADS; \
        local real *column = (local real *)(to) + v % QUADS * 4 * (row_vectors) * 4 + v / QUADS; \
        column[0] = values[i].s0; \
        column[(row_vectors) * 4] = values[i].s1; \
        column[(row_vectors) * 8] = values[i].s2; \
        column[(row_vectors) * 12] = values[i].s3; \
    }
#else
#define FETCH(to, from, width, fetches, pitch) \
    _Pragma("unroll") for (int i = 0; i < (fetches); i++) { \
        const int v = id + i * THREADS; \
        to[i] = *(global const realv *)((from) + (long)(v / ((width) / 4)) * (pitch) + v % ((width) / 4) * 4); \
    }
#define PLACE(to, values, width, row_vectors, fetches) \
    _Pragma("unroll") for (int i = 0; i < (fetches); i++) (to)[id + i * THREADS] = values[i];
#endif

// Global: work-items of row_tiles * column_tiles * parts * matrices work-groups. depth is a multiple of TILE_K. With
// `add`, the products are added to what C holds.
#if SCALAR_ITEMS
__attribute__((intel_vec_len_hint(1)))
#endif
#if FIXED_GROUP
__attribute__((reqd_work_group_size(THREADS, 1, 1)))
#endif
kernel void winograd_product(TENSOR_OF(const real, A), TENSOR_OF(const real, B), TENSOR_OF(real, C), const int row_tiles,
                             const int column_tiles, const int depth, const int parts, const int steps_of_part,
                             const int matrices, const int add) {
    local realv a_tiles[2 * A_TILE], b_tiles[2 * B_TILE];
    const int id = get_local_id(0), rows = row_tiles * TILE_M, columns = column_tiles * TILE_N;
    uint place_of_group = get_group_id(0);
    const int row_tile = place_of_group % row_tiles * TILE_M;
    place_of_group /= row_tiles;
    const int column_tile = place_of_group % column_tiles * TILE_N;
    place_of_group /= column_tiles;
    const int part = place_of_group % parts, matrix = place_of_group / parts;
    const int first = part * steps_of_part, steps = min(depth / TILE_K - first, steps_of_part);
#if DEPTH_INNER
    const int a_pitch = depth, b_pitch = depth;
    const long a_step = TILE_K, b_step = TILE_K;
    global const real *from_a = OPEN(A) + ((long)matrix * rows + row_tile) * depth + (long)first * TILE_K;
    global const real *from_b = OPEN(B) + ((long)matrix * columns + column_tile) * depth + (long)first * TILE_K;
#else
    const int a_pitch = rows, b_pitch = columns;
    const long a_step = (long)TILE_K * rows, b_step = (long)TILE_K * columns;
    global const real *from_a = OPEN(A) + ((long)matrix * depth + (long)first * TILE_K) * rows + row_tile;
    global const real *from_b = OPEN(B) + ((long)matrix * depth + (long)first * TILE_K) * columns + column_tile;
#endif

    real sums[ITEM_M][ITEM_N];
#pragma unroll
    for (int i = 0; i < ITEM_M; i++)
#pragma unroll
        for (int j = 0; j < ITEM_N; j++) sums[i][j] = 0;

    const Place place = place_of_item();
    if (steps > 0) {
        Fetched fetched;
        FETCH(fetched.a, from_a, TILE_M, A_FETCHES, a_pitch)
        FETCH(fetched.b, from_b, TILE_N, B_FETCHES, b_pitch)
        PLACE(a_tiles, fetched.a, TILE_M, A_ROW, A_FETCHES)
        PLACE(b_tiles, fetched.b, TILE_N, B_ROW, B_FETCHES)
        barrier(CLK_LOCAL_MEM_FENCE);
        local const realv *const a_start = a_tiles + place.m, *const b_start = b_tiles + place.n;
        local const realv *a = a_start, *b = b_start;
        Fragment even, odd;
        int now = 0;
        read_fragment(&even, a, b, 0);
        for (int step = 1; step <= steps; step++) {
            from_a += a_step;
            from_b += b_step;
            if (step < steps) {
                FETCH(fetched.a, from_a, TILE_M, A_FETCHES, a_pitch)
                FETCH(fetched.b, from_b, TILE_N, B_FETCHES, b_pitch)
            }
#pragma unroll
            for (int k = 0; k < TILE_K - 2; k += 2) {
                read_fragment(&odd, a, b, k + 1);
                multiply(&even, sums);
                read_fragment(&even, a, b, k + 2);
                multiply(&odd, sums);
            }
            read_fragment(&odd, a, b, TILE_K - 1);
            multiply(&even, sums);
            now ^= 1;
            if (step < steps) {
                PLACE(a_tiles + now * A_TILE, fetched.a, TILE_M, A_ROW, A_FETCHES)
                PLACE(b_tiles + now * B_TILE, fetched.b, TILE_N, B_ROW, B_FETCHES)
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            // a step's last products hide the wait for the next tiles; what this reads after the last step is not used
            a = a_start + now * A_TILE;
            b = b_start + now * B_TILE;
            read_fragment(&even, a, b, 0);
            multiply(&odd, sums);
        }
    }

    global real *to = OPEN(C) + (((long)part * matrices + matrix) * rows + row_tile) * columns + column_tile;
#pragma unroll
    for (int i = 0; i < ITEM_M; i++) {
#pragma unroll
        for (int j = 0; j < ITEM_N; j += 4) {
            global realv *vector = (global realv *)(to + (long)row_of(&place, i) * columns + column_of(&place, j));
            realv sum = (realv)(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
            if (add) sum += *vector;
            *vector = sum;
        }
    }
}
