// Dense layers on CPU devices. The matrix of weights b is streamed from memory once for a block of the batch; what
// meets it again and again stays in registers and in the first levels of the cache.
//
//     dense_rows     c[n][s]  =  bias[s] + sum over t of a[n][t] * b[s][t]
//     dense_columns  c[n][t]  =  bias[t] + sum over s of a[n][s] * b[s][t]
//     dense_outer    c[s][t]  =  sum over n of a[n][s] * b[n][t]
//     dense_sum      adds the parts into which a long sum was split, in their order
//
// a (batch, rows or columns), b (rows, columns), c; all row-major. A work-group is one work-item: local memory is its
// scratch. MR results of the batch times NV rows of the weights are one register tile. In dense_rows its lanes are
// partial sums of one result, added up at the end.

#include "common/epilogue.cl"
#include "common/past_caches.cl"
#include "common/register_tile.cl"

// The first `count` of a vector's elements, and zeros.
realv load_part(global const stored *p, const int count) {
    real lanes[VL];
    for (int l = 0; l < VL; l++) lanes[l] = l < count ? LOAD(p, l) : 0;
    return LOAD_REALS(lanes);
}

// Returns, in lane i, the sum of the lanes of a[i]. Each step adds halves of two vectors side by side.
realv sums_of_lanes(realv *a) {
#pragma unroll
    for (int width = VL / 2; width > 0; width /= 2) {
#pragma unroll
        for (int i = 0; i < width; i++) a[i] = LACE_LO(a[i], a[i + width]) + LACE_HI(a[i], a[i + width]);
    }
    return a[0];
}

// packed[t / VL][n][VL] = a[n][t] for MR rows of a, `step` elements apart; zeros after the row `last` and after
// `count`.
void pack_batch(local real *packed, global const stored *a, const long step, const int last, const int count) {
    const int vectors = count / VL, rest = count % VL;
    for (int n = 0; n < MR; n++) {
        if (n > last) {
            for (int v = 0; v < vectors + (rest > 0); v++) STORE_REALS(packed + (v * MR + n) * VL, (realv)(0));
            continue;
        }
        global const stored *from = a + n * step;
        for (int v = 0; v < vectors; v++) STORE_REALS(packed + (v * MR + n) * VL, VLOAD(from, v * VL));
        if (rest) STORE_REALS(packed + (vectors * MR + n) * VL, load_part(from + vectors * VL, rest));
    }
}

// Writes or adds one row of results, `values` of whole vectors `step` elements apart. It begins at the bias' element
// `first` and at the result's element `start`.
void store_row(global stored *c, local const real *values, const int step, const int count, global const stored *bias,
               const bool has_bias, const bool accumulate, const long first, const long start TAKE_EPILOGUE) {
    int at = 0;
    for (; at + VL <= count; at += VL) {
        realv value = LOAD_REALS(values + at / VL * step);
        if (has_bias) value += VLOAD(bias, at);
        value = EPILOGUE_CHANNELS(value, first + at, start + at);
        if (accumulate) value += VLOAD(c, at);
        VSTORE(c, at, value);
    }
    for (; at < count; at++) {
        real value = values[at / VL * step + at % VL];
        if (has_bias) value += LOAD(bias, at);
        value = EPILOGUE_ELEMENT(value, first + at, start + at);
        if (accumulate) value += LOAD(c, at);
        STORE(c, at, value);
    }
}

// Adds to acc[n][r] the products of vector n of x, where x lies packed, and w[r]. The weights' vectors are in registers
// by then; one of x at a time joins them.
#define MULTIPLY_TILE(acc, w, x) TILE_STEP(acc, LOAD_REALS((x) + i_ * VL), vector_[v_] = w[v_])

// sum[r] += the sum over n of factor[r][n] * x[n], where x lies packed.
#define MULTIPLY_OUTER(sum, factor, x)                                                                \
    _Pragma("unroll") for (int n_ = 0; n_ < MR; n_++) {                                               \
        const realv x_ = LOAD_REALS((x) + n_ * VL);                                                   \
        _Pragma("unroll") for (int r_ = 0; r_ < NV; r_++) sum[r_] = fma(factor[r_][n_], x_, sum[r_]); \
    }

// One work-item: a block of rows, a block of the batch, a part of the columns. sums holds a vector for each of its
// results.
kernel void dense_rows(CONST_TENSOR(a), CONST_TENSOR(b), CONST_TENSOR(bias), TENSOR(c), TENSOR_OF(real, partial),
                       const int has_bias, const int accumulate, const int batch, const int rows, const int columns,
                       const int item_rows, const int item_batch, const int part_columns, const int chunk,
                       local real *packed, local real *sums EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int first = get_global_id(0) * item_rows, count = min(item_rows, rows - first);
    const int batch_first = get_global_id(1) * item_batch, batch_count = min(item_batch, batch - batch_first);
    const int part = get_global_id(2), parts = get_global_size(2);
    const int begin = part * part_columns, end = min(begin + part_columns, columns);
    const int groups = (count + NV - 1) / NV, blocks = (batch_count + MR - 1) / MR;
    for (int i = 0; i < blocks * groups * NV * MR; i++) STORE_REALS(sums + i * VL, (realv)(0));
    for (int from = begin; from < end; from += chunk) {
        const int length = min(chunk, end - from), vectors = length / VL, rest = length % VL;
        for (int block = 0; block < blocks; block++) {
            const int n_first = block * MR;
            pack_batch(packed, OPEN(a) + (long)(batch_first + n_first) * columns + from, columns,
                       batch_count - 1 - n_first, length);
            for (int group = 0; group < groups; group++) {
                global const stored *w[NV];
#pragma unroll
                for (int r = 0; r < NV; r++) {
                    w[r] = OPEN(b) + (long)(first + min(group * NV + r, count - 1)) * columns + from;
                }
                // asked for early: this chunk while it comes from memory, else its share of the next one
                const long ahead =
                    (from == begin && block == 0) || blocks == 1
                        ? group + 1 < groups ? (long)NV * columns : length - (long)group * NV * columns
                    : group % blocks == block ? length
                                              : 0;
                local real *kept = sums + (block * groups + group) * MR * COLS;  // [row][n]
                local const real *x = packed;
                realv acc[MR][NV];
                TILE_SET(acc, LOAD_REALS(kept + (v_ * MR + i_) * VL))
                for (int at = 0; at < vectors * VL; at += VL) {
                    realv weight[NV];
#pragma unroll
                    for (int r = 0; r < NV; r++) {
                        __builtin_prefetch(w[r] + at + ahead, 0, 2);
                        weight[r] = VLOAD(w[r], at);
                    }
                    MULTIPLY_TILE(acc, weight, x)
                    x += MR * VL;
                }
                if (rest) {
                    realv weight[NV];
#pragma unroll
                    for (int r = 0; r < NV; r++) weight[r] = load_part(w[r] + vectors * VL, rest);
                    MULTIPLY_TILE(acc, weight, x)
                }
                TILE_ROWS { TILE_VECTORS STORE_REALS(kept + (v_ * MR + i_) * VL, acc[i_][v_]); }
            }
        }
    }
    for (int n = 0; n < batch_count; n++) {
        const long at = (long)(batch_first + n) * rows + first;
        local const real *kept = sums + (long)(n / MR) * groups * NV * MR * VL + n % MR * VL;
        for (int r = 0; r < count; r += VL) {
            realv vectors[VL];
#pragma unroll
            for (int i = 0; i < VL; i++) vectors[i] = LOAD_REALS(kept + min(r + i, count - 1) * MR * VL);
            local real *values = packed;  // free by now
            STORE_REALS(values, sums_of_lanes(vectors));
            const int lanes = min(count - r, VL);
            if (parts > 1) {
                global real *to = OPEN(partial) + (long)part * batch * rows + at + r;
                for (int i = 0; i < lanes; i++) to[i] = values[i];
            } else {
                store_row(OPEN(c) + at + r, values, VL, lanes, OPEN(bias) + first + r, has_bias, accumulate, first + r,
                          at + r PASS_EPILOGUE);
            }
        }
    }
}

// One work-item: a block of columns and a part of the rows. sums holds the item's results, [block of MR][column /
// VL][MR][VL]. Rows are taken `chunk` at a time for all blocks of the batch, so that only the first block reads them
// from memory.
kernel void dense_columns(CONST_TENSOR(a), CONST_TENSOR(b), CONST_TENSOR(bias), TENSOR(c), TENSOR_OF(real, partial),
                          const int has_bias, const int accumulate, const int batch, const int rows, const int columns,
                          const int item_columns, const int part_rows, const int chunk,
                          local real *sums EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int first = get_global_id(0) * item_columns, count = min(item_columns, columns - first);
    const int part = get_global_id(1), parts = get_global_size(1);
    const int begin = part * part_rows, end = min(begin + part_rows, rows);
    const int vectors = (count + VL - 1) / VL, whole = count / VL, blocks = (batch + MR - 1) / MR;
    const long size = (long)rows * columns;
    for (int i = 0; i < blocks * vectors * MR; i++) STORE_REALS(sums + i * VL, (realv)(0));
    for (int from = begin; from < end; from += chunk) {
        const int to = min(from + chunk, end);
        for (int block = 0; block < blocks; block++) {
            int row = from;
            for (; row + NV <= to; row += NV) {
                global const stored *w = OPEN(b) + (long)row * columns + first;
                const bool inside = (long)(row + NV - 1) * columns + first + vectors * VL <= size;
                const long ahead = block ? 0 : (long)NV * columns;
                local real *x = sums + block * vectors * MR * VL;
                realv factor[NV][MR];
#pragma unroll
                for (int n = 0; n < MR; n++) {
                    const long at = (long)min(block * MR + n, batch - 1) * rows + row;
#pragma unroll
                    for (int r = 0; r < NV; r++) factor[r][n] = LOAD(OPEN(a), at + r);
                }
                for (int v = 0; v < vectors; v++) {
                    realv weight[NV];
                    if (v < whole || inside) {
#pragma unroll
                        for (int r = 0; r < NV; r++) {
                            __builtin_prefetch(w + r * (long)columns + v * VL + ahead, 0, 2);
                            weight[r] = VLOAD(w, r * (long)columns + v * VL);
                        }
                    } else {
#pragma unroll
                        for (int r = 0; r < NV; r++)
                            weight[r] = load_part(w + r * (long)columns + v * VL, count - v * VL);
                    }
#pragma unroll
                    for (int n = 0; n < MR; n++) {
                        realv sum = LOAD_REALS(x + n * VL);
#pragma unroll
                        for (int r = 0; r < NV; r++) sum = fma(weight[r], factor[r][n], sum);
                        STORE_REALS(x + n * VL, sum);
                    }
                    x += MR * VL;
                }
            }
            for (; row < to; row++) {
                global const stored *w = OPEN(b) + (long)row * columns + first;
                for (int v = 0; v < vectors; v++) {
                    const realv weight = v < whole ? VLOAD(w, v * VL) : load_part(w + v * VL, count - v * VL);
                    for (int n = 0; n < MR; n++) {
                        const real factor = LOAD(OPEN(a), (long)min(block * MR + n, batch - 1) * rows + row);
                        local real *x = sums + ((block * vectors + v) * MR + n) * VL;
                        STORE_REALS(x, fma(weight, (realv)(factor), LOAD_REALS(x)));
                    }
                }
            }
        }
    }
    for (int n = 0; n < batch; n++) {
        local const real *values = sums + (n / MR * vectors * MR + n % MR) * VL;
        const long at = (long)n * columns + first;
        if (parts == 1) {
            store_row(OPEN(c) + at, values, MR * VL, count, OPEN(bias) + first, has_bias, accumulate, first,
                      at PASS_EPILOGUE);
            continue;
        }
        global real *to = OPEN(partial) + (long)part * batch * columns + at;
        for (int v = 0; v < whole; v++) STORE_REALS(to + v * VL, LOAD_REALS(values + v * MR * VL));
        for (int i = whole * VL; i < count; i++) to[i] = values[i / VL * MR * VL + i % VL];
    }
}

// c[n][i] (+)= bias[i] + sum over parts of partial[part][n][i]. One work-item: a range of one row.
kernel void dense_sum(TENSOR_OF(const real, partial), CONST_TENSOR(bias), TENSOR(c), const int has_bias,
                      const int accumulate, const int size, const int parts, const int range EPILOGUE_PARAMETERS) {
    OPEN_EPILOGUE
    const int first = get_global_id(0) * range, count = min(range, size - first), n = get_global_id(1);
    const long at = (long)n * size + first, all = (long)get_global_size(1) * size;
    for (int i = 0; i < count; i += VL) {
        const int lanes = min(count - i, VL);
        realv sum = 0;
        for (int part = 0; part < parts; part++) {
            global const real *from = OPEN(partial) + part * all + at + i;
            if (lanes == VL) {
                sum += LOAD_REALS(from);
            } else {
                real values[VL];
                for (int l = 0; l < VL; l++) values[l] = l < lanes ? from[l] : 0;
                sum += LOAD_REALS(values);
            }
        }
        if (lanes == VL) {
            if (has_bias) sum += VLOAD(OPEN(bias), first + i);
            sum = EPILOGUE_CHANNELS(sum, first + i, at + i);
            if (accumulate) sum += VLOAD(OPEN(c), at + i);
            VSTORE(OPEN(c), at + i, sum);
            continue;
        }
        real values[VL];
        STORE_REALS(values, sum);
        for (int l = 0; l < lanes; l++) {
            real value = values[l];
            if (has_bias) value += LOAD(OPEN(bias), first + i + l);
            value = EPILOGUE_ELEMENT(value, first + i + l, at + i + l);
            if (accumulate) value += LOAD(OPEN(c), at + i + l);
            STORE(OPEN(c), at + i + l, value);
        }
    }
}

// One work-item: a block of rows of c and a block of its columns, for a batch of at most MR. With `stream`, what is
// overwritten goes past the caches where its address allows that: the lines need not be read from memory first.
kernel void dense_outer(CONST_TENSOR(a), CONST_TENSOR(b), TENSOR(c), const int accumulate, const int batch,
                        const int rows, const int columns, const int item_rows, const int item_columns,
                        const int stream, local real *packed) {
    const int first = get_global_id(0) * item_columns, count = min(item_columns, columns - first);
    const int from = get_global_id(1) * item_rows, to = min(from + item_rows, rows);
    const int whole = count / VL, rest = count % VL;
    pack_batch(packed, OPEN(b) + first, columns, batch - 1, count);
    global stored *cs = OPEN(c) + first;
    const bool past = stream && !accumulate && columns % VL == 0 && ON_VECTORS(cs);
    for (int row = from; row < to; row += NV) {
        realv factor[NV][MR];
        global stored *target[NV];
#pragma unroll
        for (int r = 0; r < NV; r++) {
            const int s = min(row + r, to - 1);  // the last row again, with the same result
            target[r] = cs + (long)s * columns;
#pragma unroll
            for (int n = 0; n < MR; n++)
                factor[r][n] = n < batch ? LOAD(OPEN(a), (long)min(n, batch - 1) * rows + s) : 0;
        }
        local const real *x = packed;
        for (int v = 0; v < whole; v++) {
            realv sum[NV];
#pragma unroll
            for (int r = 0; r < NV; r++) sum[r] = 0;
            MULTIPLY_OUTER(sum, factor, x)
            x += MR * VL;
            if (past) {
#pragma unroll
                for (int r = 0; r < NV; r++) PAST_stored(target[r], v * VL, sum[r]);
            } else if (accumulate) {
#pragma unroll
                for (int r = 0; r < NV; r++) {
                    if (row + r < to) VSTORE(target[r], v * VL, sum[r] + VLOAD(target[r], v * VL));
                }
            } else {
#pragma unroll
                for (int r = 0; r < NV; r++) VSTORE(target[r], v * VL, sum[r]);
            }
        }
        if (rest) {
            realv sum[NV];
#pragma unroll
            for (int r = 0; r < NV; r++) sum[r] = 0;
            MULTIPLY_OUTER(sum, factor, x)
            for (int r = 0; r < NV && row + r < to; r++) {
                real lanes[VL];
                STORE_REALS(lanes, sum[r]);
                for (int l = 0; l < rest; l++) {
                    const int at = whole * VL + l;
                    STORE(target[r], at, lanes[l] + (accumulate ? LOAD(target[r], at) : 0));
                }
            }
        }
    }
    if (past) mem_fence(CLK_GLOBAL_MEM_FENCE);
}
