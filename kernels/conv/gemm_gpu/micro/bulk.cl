// Boxes of matrices of 16 bits, copied to local memory by Hopper's tensor copy engine: one work-item asks for a box,
// and a barrier in local memory tells when it is there. Boxes are as tiles lie there (micro/halves.cl): rows of 64
// elements, with the swizzle of 128 bytes, and zeros beyond the matrix's ends. A box has a part of its matrix.
//
// A kernel that asks for boxes takes its TensorMaps as its first parameters (core/planning/tensor_map.py): OPEN_MAP
// finds them by the names that the compiler gives to parameters. The matrix begins at any address of 16 bytes from
// 4 GiB on: a map has two axes more, whose coordinates are the address (BULK_REACHES).

#define MAP_BASE 4294967296ul  // an address, where maps begin
#define MAP_UNIT 16            // bytes, of the axis of addresses below MAP_BASE; the other one's are MAP_BASE

#if EMULATED
typedef struct {
    long columns, rows, pitch, box_rows;  // of the matrix, elements from row to row, and rows of a box
} TensorMap;
#define BULK_WARP 0
#define OPEN_MAP(name, kernel_name, index, map) const TensorMap name = map
#define BULK_MAP const TensorMap
#define BULK_REACHES(p) ((ulong)(p) % MAP_UNIT == 0)
#define BULK_BARRIERS(name, count)
#define BULK_STATE(barriers) 0
#define BULK_OPEN(barriers, stages, readers)
#define BULK_ASK(barriers, stage, bytes)
#define BULK_COPY(to, map, from, x, y, barriers, stage) copy_box(to, map, from, x, y)

void copy_box(local ushort *to, const TensorMap map, global const stored *from, const int x, const int y) {
    for (int i = get_local_id(0); i < map.box_rows * HALVES_DEPTH; i += get_local_size(0)) {
        const int row = i / HALVES_DEPTH, column = i % HALVES_DEPTH;
        const bool there = x + column < map.columns && y + row < map.rows;
        to[HALVES_SLOT(column, row)] =
            there ? ((global const ushort *)from)[(y + row) * map.pitch + x + column] : (ushort)0;
    }
}
#else
typedef struct __attribute__((aligned(64))) {
    ulong words[16];
} TensorMap;
#define BULK_WARP 32  // work-items more, of which one asks for boxes
#define BULK_MAP const ulong
#define OPEN_MAP(name, kernel_name, index, map) \
    ulong name;                                 \
    asm volatile("{.reg .b64 at; mov.b64 at, " #kernel_name "_param_" #index "; cvta.param.u64 %0, at;}" : "=l"(name))
#define BULK_REACHES(p) ((ulong)(p) >= MAP_BASE && (ulong)(p) % MAP_UNIT == 0)

// For each stage a barrier that its copies have arrived, and then one that nobody reads them any more.
#define BULK_BARRIERS(name, count) local ulong name[2 * (count)];
#define BULK_STATE(barriers) (barriers)
#define ARRIVED(barriers, stage) ((uint)(size_t)((barriers) + 2 * (stage)))
#define PASSED(barriers, stage) ((uint)(size_t)((barriers) + 2 * (stage) + 1))
#define BULK_OPEN(barriers, stages, readers)                                                                \
    if (get_local_id(0) == 0) {                                                                             \
        for (int i = 0; i < (stages); i++) {                                                                \
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(ARRIVED(barriers, i)) : "memory");  \
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(PASSED(barriers, i)), "r"(readers) \
                         : "memory");                                                                       \
        }                                                                                                   \
        asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");   \
    }
// The barrier waits for so many bytes of copies.
#define BULK_ASK(barriers, stage, bytes)                                                                              \
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ARRIVED(barriers, stage)), "r"(bytes) \
                 : "memory")
#define BULK_COPY(to, map, from, x, y, barriers, stage)                                                              \
    asm volatile(                                                                                                    \
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], " \
        "[%6];" ::"r"((uint)(size_t)(to)),                                                                           \
        "l"(map), "r"(x), "r"(y), "r"((uint)((ulong)(from) % MAP_BASE / MAP_UNIT)),                                  \
        "r"((uint)((ulong)(from) / MAP_BASE - 1)), "r"(ARRIVED(barriers, stage))                                     \
        : "memory")
// A reader's warp has read a stage. Once all have, it is copied anew.
#define BULK_PASS(barriers, stage) \
    if (get_local_id(0) % 32 == 0) \
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(PASSED(barriers, stage)) : "memory")

void bulk_wait(const uint barrier_address, const uint phase) {
    uint done = 0;
    while (!done)
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(barrier_address), "r"(phase)
                     : "memory");
}
#endif
