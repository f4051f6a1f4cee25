// The loader that LOADER names. The micro kernel's layout of local memory comes before. Tensors of 16 bits are fetched
// as memory has them and converted when they are stored in local memory, after a step's products.

#include "common/raw.cl"
#include "conv/gemm_gpu/loaders/positions.cl"
#include "conv/gemm_gpu/loaders/phases.cl"

#if LOADER == GATHER || LOADER == BY_ROWS
#include "conv/gemm_gpu/loaders/vectors_of_rows.cl"
#elif LOADER == BY_COLUMNS || PIXEL_VECTORS
#include "conv/gemm_gpu/loaders/vectors_of_columns.cl"
#endif

#if LOADER == GATHER
#include "conv/gemm_gpu/loaders/gather.cl"
#elif LOADER == PIXELS
#include "conv/gemm_gpu/loaders/pixels.cl"
#else
#include "conv/gemm_gpu/loaders/matrices.cl"
#endif
