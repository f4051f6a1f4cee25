// Numbers of a tensor as products of matrices on CPU devices load them, and vectors of those that lie a step apart.

#include "common/operands.cl"

#if PAIRED
typedef ushort number;
typedef CAT(ushort, VL) numbers;
#define PLANE_NUMBER(p, i) ((p)[i])
#define NUMBERS_FROM(p, i) CAT(vload, VL)(0, (p) + (i))
#else
typedef real number;
typedef realv numbers;
#define PLANE_NUMBER(p, i) LOAD(p, i)
#define NUMBERS_FROM(p, i) VLOAD(p, i)
#endif

// Lane i is p[i * step]; VL * step elements may be read from p on.
numbers load_apart(global const stored *p, const int step) {
    if (step == 1) return NUMBERS_FROM(p, 0);
    numbers value;
    if (step == 2) {
        const numbers a = NUMBERS_FROM(p, 0), b = NUMBERS_FROM(p, VL);
        value.lo = a.even;
        value.hi = b.even;
    } else if (step == 4) {
        const numbers a = NUMBERS_FROM(p, 0), b = NUMBERS_FROM(p, VL);
        const numbers c = NUMBERS_FROM(p, 2 * VL), d = NUMBERS_FROM(p, 3 * VL);
        numbers ab, cd;
        ab.lo = a.even;
        ab.hi = b.even;
        cd.lo = c.even;
        cd.hi = d.even;
        value.lo = ab.even;
        value.hi = cd.even;
    } else {
        number lanes[VL];
        for (int i = 0; i < VL; i++) lanes[i] = PLANE_NUMBER(p, i * step);
        value = CAT(vload, VL)(0, lanes);
    }
    return value;
}
