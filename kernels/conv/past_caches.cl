// Results that outgrow the caches, PAST_CACHES, are stored past them, where addresses allow that; all others as usual.
//
//     GOES_PAST(p, where)            whether vectors from p on do; `where` says what has to hold besides p's alignment
//     PUT_PAST(p, i, value)          stores a vector at p + i past the caches
//     PUT_VECTOR(past, p, i, value)  stores a vector at p + i

#include "common/past_caches.cl"

#ifdef PAST_CACHES
#define GOES_PAST(p, where) ((where) && ON_VECTORS(p))
#define PUT_PAST(p, i, value) PAST_stored(p, i, value)
#define PUT_VECTOR(past, p, i, value) \
    if (past)                         \
        PUT_PAST(p, i, value);        \
    else                              \
        VSTORE(p, i, value);
#else
#define GOES_PAST(p, where) false
#define PUT_PAST(p, i, value) VSTORE(p, i, value)
#define PUT_VECTOR(past, p, i, value) VSTORE(p, i, value);
#endif
