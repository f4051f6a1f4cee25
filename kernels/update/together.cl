// Updates of several arrays: a work-group has TILE elements of one of them.
//
// BODY               the step's assignments: y0, y1, ... from x0, x1, ... and the scalars p_name
// VECTORS(F, a)      F(i, kind, a) for each input xi of which array a has its own; kind: stored or real elements
// SINGLES(F)         F(i, kind) for each input of one element, which all arrays read
// STATES(F)          F(n, i, kind) for each output yn and the input xi whose place it takes
// SHARED(F)          F(name) for each scalar of all arrays
// OWN(F, a)          F(name, a) for each scalar of which array a has its own
// MORE_ARRAYS(F)     F(a) for each array but the first
#include "pointwise/value.cl"

#ifdef TILE
#define AHEAD 4  // elements of each input that a work-item reads before it writes any

#define VECTOR_PARAMETER(i, kind, a) TENSOR_OF(kind, in##i##_##a),
#define SINGLE_PARAMETER(i, kind) TENSOR_OF(const kind, in##i),
#define SHARED_PARAMETER(name) const real p_##name,
#define OWN_PARAMETER(name, a) const real own_##name##_##a,
#define PARAMETERS_OF(a) VECTORS(VECTOR_PARAMETER, a) OWN(OWN_PARAMETER, a) const ulong size_##a, const ulong first_##a
#define NEXT_PARAMETERS(a) , PARAMETERS_OF(a)

#define DECLARE_VECTOR(i, kind, a) global kind *xs##i = OPEN(in##i##_##a);
#define DECLARE_OWN(name, a) real p_##name = own_##name##_##a;
#define DECLARE_RESULT(n, i, kind) VALUE y##n;
#define CHOOSE_VECTOR(i, kind, a) xs##i = OPEN(in##i##_##a);
#define CHOOSE_OWN(name, a) p_##name = own_##name##_##a;
#define CHOOSE(a)                 \
    if (group >= first_##a) {     \
        VECTORS(CHOOSE_VECTOR, a) \
        OWN(CHOOSE_OWN, a)        \
        size = size_##a;          \
        first = first_##a;        \
    }
#define READ_SINGLE(i, kind) const VALUE x##i = LOAD_##kind(OPEN(in##i), 0);
#define DECLARE_AHEAD(i, kind, a) real ahead##i[AHEAD];
#define READ_AHEAD(i, kind, a) ahead##i[turn] = LOAD_##kind(xs##i, at + (ulong)turn * GROUP);
#define TAKE(i, kind, a) const VALUE x##i = ahead##i[turn];
#define WRITE(n, i, kind) STORE_##kind(xs##i, at + (ulong)turn * GROUP, y##n);
#define EACH_AHEAD _Pragma("unroll") for (int turn = 0; turn < AHEAD; turn++) if (at + (ulong)turn * GROUP < end)

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void update_together(
    SINGLES(SINGLE_PARAMETER) SHARED(SHARED_PARAMETER) PARAMETERS_OF(0) MORE_ARRAYS(NEXT_PARAMETERS)) {
    const ulong group = get_group_id(0);
    VECTORS(DECLARE_VECTOR, 0)
    OWN(DECLARE_OWN, 0)
    ulong size = size_0, first = first_0;
    MORE_ARRAYS(CHOOSE)
    SINGLES(READ_SINGLE)
    const ulong begin = (group - first) * TILE, end = min(size, begin + TILE);
    for (ulong at = begin + get_local_id(0); at < end; at += GROUP * AHEAD) {
        VECTORS(DECLARE_AHEAD, 0)
        EACH_AHEAD{VECTORS(READ_AHEAD, 0)} EACH_AHEAD {
            VECTORS(TAKE, 0)
            STATES(DECLARE_RESULT)
            BODY
            STATES(WRITE)
        }
    }
}
#endif
