/* float16 from and to float. */
#ifndef CLGRAFT_MXNET_HALVES_H
#define CLGRAFT_MXNET_HALVES_H

#include <stdbool.h>
#include <stdint.h>

static inline float of_half(uint16_t half) {
    union {
        uint32_t bits;
        float value;
    } u = {.bits = (uint32_t)(half & 0x7fff) << 13};
    bool finite = u.bits < 0x0f800000;
    uint32_t other = u.bits | 0x7f800000;
    u.value *= 0x1p112f; /* the exponent's new bias; subnormal numbers become normal */
    u.bits = (finite ? u.bits : other) | (uint32_t)(half & 0x8000) << 16;
    return u.value;
}

/* To nearest, ties to even. */
static inline uint16_t to_half(float value) {
    union {
        float value;
        uint32_t bits;
    } u = {.value = value}, small;
    uint32_t sign = u.bits >> 16 & 0x8000, rest = u.bits & 0x7fffffff;
    uint32_t normal = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
    small.bits = rest;
    small.value += 0.5f; /* rounds at a subnormal number's last bit */
    uint32_t found = rest < 0x38800000 ? small.bits - 0x3f000000 : normal;
    found = rest >= 0x47800000 ? 0x7c00 : found;
    found = rest > 0x7f800000 ? 0x7e00 : found;
    return (uint16_t)(sign | found);
}

#endif
