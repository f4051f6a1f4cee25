// Elements changed by random numbers, drawn where they are needed and never stored: Philox 4x32-10 (Salmon et al. 2011,
// "Parallel random numbers: as easy as 1, 2, 3"), a function of a counter and a key.
//
// x, y, dy, dx  `count` elements      key  4 words: the seed's low and high half, the stream, the number of the draw
//
// MODE  0 dropout: y = x * n with n = u < keep ? scale : 0      (a: keep, b: scale)
//       1 rrelu: y = x > 0 ? x : s * x with s = a + (b - a) * u
//       2 rrelu's gradient: dx = x > 0 ? dy : s * dy
//       3 n itself, as reals
// u     uniform in [0, 1), 24 bits
//
// Elements 64 k + 16 j + i (i < 16, j < 4) take word j of the counter 16 k + i: a layout that suits vectors of any
// width, and that is the same on every device.
//
// VL     lanes (2, 4, 8, 16): a work-item takes `blocks_per_item` blocks of 64 elements
// TOGETHER  vectors of counters that are computed side by side, without QUADS: blocks_per_item is a multiple of it
// QUADS  1, with VL 4: for GPUs, a work-item takes 4 counters, whose 16 elements are 4 vectors

#define BLOCK 64
#define LANES 16
#define WORDS 4

#if MODE == 3
typedef real result_type;
#define LOAD_RESULT(p, i) ((p)[i])
#define STORE_RESULT(p, i, value) ((p)[i] = (value))
#else
typedef stored result_type;
#define LOAD_RESULT(p, i) LOAD(p, i)
#define STORE_RESULT(p, i, value) STORE(p, i, value)
#endif

#if MODE == 3
#define INPUTS
#elif MODE == 2
#define INPUTS CONST_TENSOR(x), CONST_TENSOR(dy),
#else
#define INPUTS CONST_TENSOR(x),
#endif
#define OUTPUT TENSOR_OF(result_type, y), const int accumulate,

#define ROUNDS 10
#define FIRST_FACTOR 0xD2511F53u
#define SECOND_FACTOR 0xCD9E8D57u

// All rounds for as many counters as the type has lanes.
#define DEFINE_PHILOX(name, type)                                         \
    void name(type *c0, type *c1, type *c2, type *c3, uint k0, uint k1) { \
        for (int round = 0; round < ROUNDS; round++) {                    \
            const type high0 = mul_hi(*c0, (type)FIRST_FACTOR);           \
            const type low0 = *c0 * FIRST_FACTOR;                         \
            const type high1 = mul_hi(*c2, (type)SECOND_FACTOR);          \
            const type low1 = *c2 * SECOND_FACTOR;                        \
            *c0 = high1 ^ *c1 ^ k0;                                       \
            *c1 = low1;                                                   \
            *c2 = high0 ^ *c3 ^ k1;                                       \
            *c3 = low0;                                                   \
            k0 += 0x9E3779B9u;                                            \
            k1 += 0xBB67AE85u;                                            \
        }                                                                 \
    }
DEFINE_PHILOX(philox, uint)

// The 4 elements of one counter.
void apply_counter(
#if MODE != 3
    global const stored *xs,
#endif
#if MODE == 2
    global const stored *dys,
#endif
    global result_type *ys, const int accumulate, const real a, const real b, global const int *key,
    const ulong counter, const ulong count) {
    uint words[WORDS] = {(uint)counter, (uint)(counter >> 32), (uint)key[2], (uint)key[3]};
    philox(&words[0], &words[1], &words[2], &words[3], key[0], key[1]);
    for (int j = 0; j < WORDS; j++) {
        const ulong at = counter / LANES * BLOCK + j * LANES + counter % LANES;
        if (at >= count) break;
        const real u = (real)(words[j] >> 8) * REAL(5.9604644775390625e-8);
#if MODE == 0
        real y = LOAD(xs, at) * (u < a ? b : 0);
#elif MODE == 1
        const real x = LOAD(xs, at);
        real y = x > 0 ? x : (a + (b - a) * u) * x;
#elif MODE == 2
        real y = LOAD(dys, at) * (LOAD(xs, at) > 0 ? 1 : a + (b - a) * u);
#else
        real y = u < a ? b : 0;
#endif
        if (accumulate) y += LOAD_RESULT(ys, at);
        STORE_RESULT(ys, at, y);
    }
}

#if MODE == 3
#define TENSORS OPEN(y)
#elif MODE == 2
#define TENSORS OPEN(x), OPEN(dy), OPEN(y)
#else
#define TENSORS OPEN(x), OPEN(y)
#endif

#ifdef VL
#define WORD CAT(uint, VL)
typedef WORD wordv;
#if QUADS
DEFINE_PHILOX(philox_vector, wordv)
#else
// Words of even lanes and those of odd lanes are the lower halves of words of 64 bits, as processors multiply them, and
// stay there up to the last round; the upper halves are no matter. A round is a chain of operations that
// wait for one another: both halves of TOGETHER vectors take it side by side, and all rounds stand one after the other.
#if VL == 2
#define PAIRS ulong
#define JOIN_WORDS(a, b, k) __builtin_shufflevector(a, b, k, 2 + k)
#elif VL == 4
#define PAIRS ulong2
#define JOIN_WORDS(a, b, k) __builtin_shufflevector(a, b, k, 4 + k, 2 + k, 6 + k)
#elif VL == 8
#define PAIRS ulong4
#define JOIN_WORDS(a, b, k) __builtin_shufflevector(a, b, k, 8 + k, 2 + k, 10 + k, 4 + k, 12 + k, 6 + k, 14 + k)
#else
#define PAIRS ulong8
#define JOIN_WORDS(a, b, k)                                                                                      \
    __builtin_shufflevector(a, b, k, 16 + k, 2 + k, 18 + k, 4 + k, 20 + k, 6 + k, 22 + k, 8 + k, 24 + k, 10 + k, \
                            26 + k, 12 + k, 28 + k, 14 + k, 30 + k)
#endif
// The lower or upper halves of words of even and of odd lanes, as one vector.
#define JOIN_LOWER(even, odd) JOIN_WORDS(CAT(as_uint, VL)(even), CAT(as_uint, VL)(odd), 0)
#define JOIN_UPPER(even, odd) JOIN_WORDS(CAT(as_uint, VL)(even), CAT(as_uint, VL)(odd), 1)
#define LOWER 0xfffffffful
#define EACH_HALF _Pragma("unroll") for (int i = 0; i < 2 * TOGETHER; i++)
#define FIRST_PRODUCT(word) (((word) & LOWER) * FIRST_FACTOR)
#define SECOND_PRODUCT(word) (((word) & LOWER) * SECOND_FACTOR)

// The keys of all rounds, two for each.
void schedule(ulong *keys, uint k0, uint k1) {
    for (int round = 0; round < ROUNDS; round++) {
        keys[2 * round] = k0;
        keys[2 * round + 1] = k1;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

// The words of TOGETHER vectors of counters from `counter` on, all that have place 0 first. Counters differ in their
// lowest word alone, so that half of the first two rounds is computed once.
inline __attribute__((always_inline)) void philox_together(wordv *words, const wordv lanes, const ulong counter,
                                                           const uint word2, const uint word3, const ulong *keys) {
    const ulong second = SECOND_PRODUCT((ulong)word2);
    const ulong first = FIRST_PRODUCT((second >> 32) ^ (counter >> 32) ^ keys[0]);
    PAIRS c0[2 * TOGETHER], c1[2 * TOGETHER], c2[2 * TOGETHER], c3[2 * TOGETHER];
    EACH_HALF {
        const PAIRS both = CAT(as_, PAIRS)((uint)counter + i / 2 * VL + lanes);
        const PAIRS mine = FIRST_PRODUCT(i % 2 ? both >> 32 : both);
        c1[i] = SECOND_PRODUCT((mine >> 32) ^ (PAIRS)(word3 ^ keys[1]));
        c0[i] = (c1[i] >> 32) ^ (PAIRS)(second ^ keys[2]);
        c2[i] = mine ^ (PAIRS)((first >> 32) ^ keys[3]);
        c3[i] = (PAIRS)first;
    }
#pragma unroll 1  // the compiler would put one vector after the other again
    for (int round = 2; round < ROUNDS - 1; round++) {
        EACH_HALF {
            const PAIRS mine = FIRST_PRODUCT(c0[i]), other = SECOND_PRODUCT(c2[i]);
            c0[i] = (other >> 32) ^ c1[i] ^ (PAIRS)(keys[2 * round]);
            c2[i] = (mine >> 32) ^ c3[i] ^ (PAIRS)(keys[2 * round + 1]);
            c1[i] = other;
            c3[i] = mine;
        }
    }
    const uint key0 = (uint)keys[2 * ROUNDS - 2], key1 = (uint)keys[2 * ROUNDS - 1];
#pragma unroll
    for (int n = 0; n < TOGETHER; n++) {  // the last round: halves are joined before they are combined
        const int even = 2 * n, odd = 2 * n + 1;
        const PAIRS mine[2] = {FIRST_PRODUCT(c0[even]), FIRST_PRODUCT(c0[odd])};
        const PAIRS other[2] = {SECOND_PRODUCT(c2[even]), SECOND_PRODUCT(c2[odd])};
        words[n] = JOIN_UPPER(other[0], other[1]) ^ JOIN_LOWER(c1[even], c1[odd]) ^ key0;
        words[TOGETHER + n] = JOIN_LOWER(other[0], other[1]);
        words[2 * TOGETHER + n] = JOIN_UPPER(mine[0], mine[1]) ^ JOIN_LOWER(c3[even], c3[odd]) ^ key1;
        words[3 * TOGETHER + n] = JOIN_LOWER(mine[0], mine[1]);
    }
}
#endif

#if MODE == 3
#define VLOAD_RESULT(p, i) CAT(vload, VL)(0, (p) + (i))
#define VSTORE_RESULT(p, i, value) CAT(vstore, VL)((value), 0, (p) + (i))
#else
#define VLOAD_RESULT(p, i) VLOAD(p, i)
#define VSTORE_RESULT(p, i, value) VSTORE(p, i, value)
#endif
#define TO_REAL CAT(convert_, CAT(REAL_NAME, VL))
#if STORAGE == 64
#define REAL_NAME double
#define IS_AT_MOST(number, limit) CAT(convert_long, VL)((number) <= (limit))
#else
#define REAL_NAME float
#define IS_AT_MOST(number, limit) ((number) <= (limit))
#endif
// n of elements by their words: `greatest` is the greatest word whose number of 24 bits is less than `keep`. If there
// is none, `kept` is 0 in the place of b.
#define FACTORS(words) select((realv)0, (realv)kept, IS_AT_MOST(words, (wordv)greatest))
#define FIND_GREATEST                                                                        \
    const uint below = (uint)clamp(ceil(a * REAL(16777216.0)), REAL(0.0), REAL(16777216.0)); \
    const uint greatest = (below << 8) - 1;                                                  \
    const real kept = below ? b : 0;

#if QUADS
// Vectors at addresses that are multiples of theirs, which is checked first.
#include "common/aligned.cl"
#if MODE == 3
#define ASTORE_RESULT(p, i, value) (*(global realv *)((p) + (i)) = (value))
#else
#define ASTORE_RESULT(p, i, value) STORE_ALIGNED(4, (p) + (i), value)
#endif
#define ALIGNED(p) ((ulong)(p) % (4 * sizeof(*(p))) == 0)

kernel void apply_random(INPUTS TENSOR_OF(const int, key), OUTPUT const real a, const real b, const ulong count) {
    global const int *key = OPEN(key);
    global result_type *ys = OPEN(y);
    const ulong block = get_global_id(0) / (LANES / 4), begin = block * BLOCK;
    const int part = get_global_id(0) % (LANES / 4) * 4;
    const ulong counter = block * LANES + part;
    FIND_GREATEST
    bool together = begin + BLOCK <= count && !accumulate && ALIGNED(ys);
#if MODE != 3
    global const stored *xs = OPEN(x);
    together &= ALIGNED(xs);
#endif
#if MODE == 2
    global const stored *dys = OPEN(dy);
    together &= ALIGNED(dys);
#endif
    if (!together) {
        for (int i = 0; i < 4; i++) apply_counter(TENSORS, accumulate, a, b, key, counter + i, count);
        return;
    }
#if MODE != 3
    realv values[WORDS];
#pragma unroll
    for (int j = 0; j < WORDS; j++) values[j] = LOAD_ALIGNED(4, xs + begin + j * LANES + part);
#endif
#if MODE == 2
    realv gradients[WORDS];
#pragma unroll
    for (int j = 0; j < WORDS; j++) gradients[j] = LOAD_ALIGNED(4, dys + begin + j * LANES + part);
#endif
    wordv words[WORDS] = {
        (uint)counter + (wordv)(0, 1, 2, 3), (wordv)(uint)(counter >> 32), (wordv)(uint)key[2], (wordv)(uint)key[3]};
    philox_vector(&words[0], &words[1], &words[2], &words[3], key[0], key[1]);
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        const realv u = TO_REAL(words[j] >> 8) * REAL(5.9604644775390625e-8);
#if MODE == 0
        const realv y = values[j] * FACTORS(words[j]);
#elif MODE == 1
        const realv y = select((a + (b - a) * u) * values[j], values[j], values[j] > (realv)0);
#elif MODE == 2
        const realv y = gradients[j] * select(a + (b - a) * u, (realv)1, values[j] > (realv)0);
#else
        const realv y = FACTORS(words[j]);
#endif
        ASTORE_RESULT(ys, begin + j * LANES + part, y);
    }
}
#else
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void apply_random(
    INPUTS TENSOR_OF(const int, key), OUTPUT const real a, const real b, const ulong count,
    const ulong blocks_per_item) {
    global const int *key = OPEN(key);
    global result_type *ys = OPEN(y);
#if MODE != 3
    global const stored *xs = OPEN(x);
#endif
#if MODE == 2
    global const stored *dys = OPEN(dy);
#endif
    ulong keys[2 * ROUNDS];
    schedule(keys, key[0], key[1]);
    const uint word2 = key[2], word3 = key[3];
    uint numbers[VL];
    for (int i = 0; i < VL; i++) numbers[i] = i;
    const wordv lanes = CAT(vload, VL)(0, numbers);
    FIND_GREATEST
    const ulong blocks = (count + BLOCK - 1) / BLOCK, first = get_global_id(0) * blocks_per_item;
    const ulong last = min(first + blocks_per_item, blocks);
    for (ulong counter = first * LANES; counter < last * LANES; counter += TOGETHER * VL) {
        wordv words[WORDS * TOGETHER];  // a counter's low word does not overflow within these
        philox_together(words, lanes, counter, word2, word3, keys);
#pragma unroll
        for (int n = 0; n < TOGETHER; n++) {
            const ulong block = (counter + n * VL) / LANES, begin = block * BLOCK + (counter + n * VL) % LANES;
            if (block >= last) break;
            if (block * BLOCK + BLOCK > count) {
                for (int i = 0; i < LANES; i++) apply_counter(TENSORS, accumulate, a, b, key, block * LANES + i, count);
                return;
            }
#pragma unroll
            for (int j = 0; j < WORDS; j++) {
                const ulong at = begin + j * LANES;
                const wordv word = words[j * TOGETHER + n];
                const realv u = TO_REAL(word >> 8) * REAL(5.9604644775390625e-8);
#if MODE == 0
                realv y = VLOAD(xs, at) * FACTORS(word);
#elif MODE == 1
                const realv x = VLOAD(xs, at);
                realv y = select((a + (b - a) * u) * x, x, x > (realv)0);
#elif MODE == 2
                realv y = VLOAD(dys, at) * select(a + (b - a) * u, (realv)1, VLOAD(xs, at) > (realv)0);
#else
                realv y = FACTORS(word);
#endif
                if (accumulate) y += VLOAD_RESULT(ys, at);
                VSTORE_RESULT(ys, at, y);
            }
        }
    }
}
#endif
#endif
