// Vectors of n elements of a tensor at multiples of their size, on GPUs: each is one load or store.
//
// n is VL, or 4 after pointwise/quads.cl; for others of 16 bits SMALL_NUMBERS(n) comes first.
#if STORAGE == 16 && (defined(BRAIN) || defined(PTX))
#define LOAD_ALIGNED(n, p) CAT(widen, n)(*(global const CAT(ushort, n) *)(p))
#define STORE_ALIGNED(n, p, value) (*(global CAT(ushort, n) *)(p) = CAT(narrow, n)(value))
#elif STORAGE == 16
#define LOAD_ALIGNED(n, p) CAT(vloada_half, n)(0, (p))
#define STORE_ALIGNED(n, p, value) CAT(CAT(vstorea_half, n), _rte)((value), 0, (p))
#elif STORAGE == 64
#define LOAD_ALIGNED(n, p) (*(global const CAT(double, n) *)(p))
#define STORE_ALIGNED(n, p, value) (*(global CAT(double, n) *)(p) = (value))
#else
#define LOAD_ALIGNED(n, p) (*(global const CAT(float, n) *)(p))
#define STORE_ALIGNED(n, p, value) (*(global CAT(float, n) *)(p) = (value))
#endif
#define IS_ALIGNED(n, p) ((ulong)(p) % ((n) * sizeof(stored)) == 0)
