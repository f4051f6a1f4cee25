// Transposes of small blocks in vector registers.

#define LOAD_REALS(p) CAT(vload, VL)(0, (p))
#define STORE_REALS(p, value) CAT(vstore, VL)((value), 0, (p))

// Interleaves the lower or upper halves of two vectors.
#if VL == 16
#define LACE_LO(a, b) (realv)(a.s0, b.s0, a.s1, b.s1, a.s2, b.s2, a.s3, b.s3, a.s4, b.s4, a.s5, b.s5, a.s6, b.s6, a.s7, b.s7)
#define LACE_HI(a, b) (realv)(a.s8, b.s8, a.s9, b.s9, a.sa, b.sa, a.sb, b.sb, a.sc, b.sc, a.sd, b.sd, a.se, b.se, a.sf, b.sf)
#elif VL == 8
#define LACE_LO(a, b) (realv)(a.s0, b.s0, a.s1, b.s1, a.s2, b.s2, a.s3, b.s3)
#define LACE_HI(a, b) (realv)(a.s4, b.s4, a.s5, b.s5, a.s6, b.s6, a.s7, b.s7)
#elif VL == 4
#define LACE_LO(a, b) (realv)(a.s0, b.s0, a.s1, b.s1)
#define LACE_HI(a, b) (realv)(a.s2, b.s2, a.s3, b.s3)
#else
#define LACE_LO(a, b) (realv)(a.s0, b.s0)
#define LACE_HI(a, b) (realv)(a.s1, b.s1)
#endif

// One step on `rows` vectors moves the highest bit of the row number to the lowest of the lane number: log2(rows) steps
// turn rows x VL elements into VL x rows, in the same number of vectors.
#define LACE(from, to, rows) \
    _Pragma("unroll") for (int i_ = 0; i_ < (rows) / 2; i_++) { \
        to[2 * i_] = LACE_LO(from[i_], from[i_ + (rows) / 2]); \
        to[2 * i_ + 1] = LACE_HI(from[i_], from[i_ + (rows) / 2]); \
    }

// Transposes a, rows x VL, with b as the other buffer; the result is in a.
#define TRANSPOSE(a, b, rows) \
    _Pragma("unroll") for (int size_ = 1; size_ < (rows); size_ *= 4) { \
        LACE(a, b, rows) \
        if (size_ * 2 < (rows)) { \
            LACE(b, a, rows) \
        } else { \
            _Pragma("unroll") for (int i_ = 0; i_ < (rows); i_++) a[i_] = b[i_]; \
        } \
    }
