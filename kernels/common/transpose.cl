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
