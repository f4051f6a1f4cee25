// Whether a lane of a comparison of vectors holds, as a tree: any() and all() may branch for every lane.

#if STORAGE == 64
#define TESTS(n) CAT(long, n)
#else
#define TESTS(n) CAT(int, n)
#endif

bool any_lane(const TESTS(VL) test) {
#if VL == 16
    const TESTS(8) eight = test.lo | test.hi;
#elif VL == 8
    const TESTS(8) eight = test;
#endif
#if VL >= 8
    const TESTS(4) four = eight.lo | eight.hi;
#elif VL == 4
    const TESTS(4) four = test;
#endif
#if VL >= 4
    const TESTS(2) two = four.lo | four.hi;
#else
    const TESTS(2) two = test;
#endif
    return (two.x | two.y) != 0;
}
