// Transposes of small blocks in vector registers.

#define LOAD_REALS(p) CAT(vload, VL)(0, (p))
#define STORE_REALS(p, value) CAT(vstore, VL)((value), 0, (p))

// Interleaves the lower or upper halves of two vectors.
#if VL == 16
#define LACE_LO(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define LACE_HI(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif VL == 8
#define LACE_LO(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define LACE_HI(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif VL == 4
#define LACE_LO(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define LACE_HI(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#else
#define LACE_LO(a, b) __builtin_shufflevector(a, b, 0, 2)
#define LACE_HI(a, b) __builtin_shufflevector(a, b, 1, 3)
#endif

// One step on `rows` vectors moves the highest bit of the row number to the lowest of the lane number: log2(rows) steps
// turn rows x VL elements into VL x rows, in the same number of vectors.
#define LACE(from, to, rows)                                       \
    _Pragma("unroll") for (int i_ = 0; i_ < (rows) / 2; i_++) {    \
        to[2 * i_] = LACE_LO(from[i_], from[i_ + (rows) / 2]);     \
        to[2 * i_ + 1] = LACE_HI(from[i_], from[i_ + (rows) / 2]); \
    }

// Transposes a, rows x VL, with b as the other buffer; the result is in a.
#define TRANSPOSE(a, b, rows)                                                    \
    _Pragma("unroll") for (int size_ = 1; size_ < (rows); size_ *= 4) {          \
        LACE(a, b, rows)                                                         \
        if (size_ * 2 < (rows)) {                                                \
            LACE(b, a, rows)                                                     \
        } else {                                                                 \
            _Pragma("unroll") for (int i_ = 0; i_ < (rows); i_++) a[i_] = b[i_]; \
        }                                                                        \
    }

// Loads a block of VL rows of reals and transposes it: a[j] holds element j of the row at ROW(i) in lane i. Vectors are
// put together from pieces of four elements where they are loaded, so that registers transpose within pieces alone:
// half as many shuffles. b is a second buffer.
#if STORAGE != 64 && VL == 16
#define PIECES(ROW, k, q) \
    (realv)(vload4(q, ROW(k)), vload4(q, ROW(4 + (k))), vload4(q, ROW(8 + (k))), vload4(q, ROW(12 + (k))))
// Each piece from lanes i to l of the first pieces of two vectors, and from those that follow.
#define OF_EACH_PIECE(a, b, i, j, k, l) \
    __builtin_shufflevector(            \
        a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8, l + 8, i + 12, j + 12, k + 12, l + 12)
#elif STORAGE != 64 && VL == 8
#define PIECES(ROW, k, q) (realv)(vload4(q, ROW(k)), vload4(q, ROW(4 + (k))))
#define OF_EACH_PIECE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l, i + 4, j + 4, k + 4, l + 4)
#endif
#ifdef PIECES
#define LOAD_TRANSPOSED(a, b, ROW)                                                    \
    _Pragma("unroll") for (int q_ = 0; q_ < VL / 4; q_++) {                           \
        _Pragma("unroll") for (int k_ = 0; k_ < 4; k_++) b[k_] = PIECES(ROW, k_, q_); \
        const realv low_ = OF_EACH_PIECE(b[0], b[1], 0, VL, 1, VL + 1),               \
                    high_ = OF_EACH_PIECE(b[0], b[1], 2, VL + 2, 3, VL + 3);          \
        const realv next_low_ = OF_EACH_PIECE(b[2], b[3], 0, VL, 1, VL + 1),          \
                    next_high_ = OF_EACH_PIECE(b[2], b[3], 2, VL + 2, 3, VL + 3);     \
        a[4 * q_] = OF_EACH_PIECE(low_, next_low_, 0, 1, VL, VL + 1);                 \
        a[4 * q_ + 1] = OF_EACH_PIECE(low_, next_low_, 2, 3, VL + 2, VL + 3);         \
        a[4 * q_ + 2] = OF_EACH_PIECE(high_, next_high_, 0, 1, VL, VL + 1);           \
        a[4 * q_ + 3] = OF_EACH_PIECE(high_, next_high_, 2, 3, VL + 2, VL + 3);       \
    }
#else
#define LOAD_TRANSPOSED(a, b, ROW)                                                     \
    {                                                                                  \
        _Pragma("unroll") for (int i_ = 0; i_ < VL; i_++) a[i_] = LOAD_REALS(ROW(i_)); \
        TRANSPOSE(a, b, VL)                                                            \
    }
#endif
