// How the tiles of A and B lie in local memory: loaders write by these macros, micro kernels read.
//
// Rows of the depth: element (k, m) of A is k * (TILE_M + PAD) + m. The matrix units' micro kernel reads vectors at
// four neighbouring depths at once; with PAD 8, these and eight columns' are in different banks.
//
// DEPTH_INNER: 16 neighbours of the depth are neighbours in memory, for the loader that has the pixels of a row at hand.
// Every fourth pair of rows is swapped, so that rows 4 * g and 4 * g + 4 are in different banks.

#if MICRO_KERNEL == 2 && LOADER == 2
#define DEPTH_INNER 1
#define DEPTH_INNER_ELEMENT(k, m) (((m) ^ ((m) >> 2 & 1)) * TILE_K + (k))
#define A_ELEMENT(k, m) DEPTH_INNER_ELEMENT(k, m)
#define B_ELEMENT(k, n) DEPTH_INNER_ELEMENT(k, n)
#define A_ELEMENTS (TILE_K * TILE_M)
#define B_ELEMENTS (TILE_K * TILE_N)
#else
#define DEPTH_INNER 0
#if MICRO_KERNEL == 2
#define PAD 8
#elif LOADER == 2
#define PAD 4  // this loader writes columns
#else
#define PAD 0
#endif
#define A_ELEMENT(k, m) ((k) * (TILE_M + PAD) + (m))
#define B_ELEMENT(k, n) ((k) * (TILE_N + PAD) + (n))
#define A_ELEMENTS (TILE_K * (TILE_M + PAD))
#define B_ELEMENTS (TILE_K * (TILE_N + PAD))
#endif
