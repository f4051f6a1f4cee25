// The portable micro kernel: tiles in local memory, TILE_K rows of TILE_M and TILE_N elements, times each other in
// registers, in float32 or float64.
//
// A work-item's rows and columns come in vectors of 4, a patch's width apart, so that a patch reads neighbouring
// vectors.

#if OPERANDS != FLOAT32
#error operands are of the arithmetic's type
#endif

#define IN_PLACE
#define ASYNC 0
#define DEPTH_INNER 0
#define A_TRANSPOSED 0
#define A_IMAGES 0
#define STAGES 2
#define TILE_ALIGNMENT
#define MICRO_LOCALS

// Element (k, m) is k * (TILE_M + PAD) + m.
#if COLUMN_LOADER
#define PAD FMA_PAD
#else
#define PAD 0
#endif
#define A_ELEMENT(k, m) ((k) * (TILE_M + PAD) + (m))
#define B_ELEMENT(k, n) ((k) * (TILE_N + PAD) + (n))
#define A_PUT(a, k, m, value) (a)[A_ELEMENT(k, m)] = (value)
#define A_TILE (TILE_K * (TILE_M + PAD) / 4)
#define B_TILE (TILE_K * (TILE_N + PAD) / 4)

#define A_ROW ((TILE_M + PAD) / 4)
#define B_ROW ((TILE_N + PAD) / 4)
#define PATCHES_M (TILE_M / ITEM_M / PATCH_M)

typedef struct {
    realv a[ITEM_M / 4], b[ITEM_N / 4];
} Fragment;

// First vector of a work-item in rows of the tiles.
typedef struct {
    int m, n;
} Place;

Place place_of_item(void) {
    const int id = get_local_id(0), lane = id % (PATCH_M * PATCH_N), patch = id / (PATCH_M * PATCH_N);
    Place place;
    place.m = patch % PATCHES_M * (PATCH_M * ITEM_M / 4) + lane / 2 % PATCH_M;
    place.n = patch / PATCHES_M * (PATCH_N * ITEM_N / 4) + lane / (2 * PATCH_M) * 2 + lane % 2;
    return place;
}

int row_of(const Place *place, const int i) { return (place->m + i / 4 * PATCH_M) * 4 + i % 4; }

int column_of(const Place *place, const int j) { return (place->n + j / 4 * PATCH_N) * 4 + j % 4; }

// a and b point to the work-item's first vectors of row 0, so that all further ones are at constant distances.
void read_fragment(Fragment *fragment, local const realv *a, local const realv *b, const int k) {
#pragma unroll
    for (int i = 0; i < ITEM_M / 4; i++) fragment->a[i] = a[k * A_ROW + i * PATCH_M];
#pragma unroll
    for (int j = 0; j < ITEM_N / 4; j++) fragment->b[j] = b[k * B_ROW + j * PATCH_N];
}

#define MULTIPLY_ROW(i, value)                                 \
    sums[i][4 * j] = fma(value, b.s0, sums[i][4 * j]);         \
    sums[i][4 * j + 1] = fma(value, b.s1, sums[i][4 * j + 1]); \
    sums[i][4 * j + 2] = fma(value, b.s2, sums[i][4 * j + 2]); \
    sums[i][4 * j + 3] = fma(value, b.s3, sums[i][4 * j + 3])

void multiply(const Fragment *fragment, real sums[ITEM_M][ITEM_N]) {
#pragma unroll
    for (int i = 0; i < ITEM_M / 4; i++) {
#pragma unroll
        for (int j = 0; j < ITEM_N / 4; j++) {
            const realv a = fragment->a[i], b = fragment->b[j];
            MULTIPLY_ROW(4 * i, a.s0);
            MULTIPLY_ROW(4 * i + 1, a.s1);
            MULTIPLY_ROW(4 * i + 2, a.s2);
            MULTIPLY_ROW(4 * i + 3, a.s3);
        }
    }
}
