// Division of numbers below 2^31 by one that the host knows: a multiplication and a shift in place of a division, which
// takes GPUs ten times as long. `packed` is the host's (core/planning/division.py): the factor in its lower half.

uint quotient(const uint n, const ulong packed) {
    const uint factor = (uint)packed;
    return factor ? mul_hi(n, factor) >> (uint)(packed >> 32) : n;
}
