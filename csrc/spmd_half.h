/* float16 and bfloat16: storage only. Arithmetic is done in float; rounding is to nearest even.
 *
 * Structs, so that arithmetic on the stored bits does not compile. No branches: loops vectorise.
 */
#ifndef SPMD_HALF_H
#define SPMD_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "spmd_select.h"

typedef struct spmd_float16 {
    uint16_t bits;
} spmd_float16;

typedef struct spmd_bfloat16 {
    uint16_t bits;
} spmd_bfloat16;

static inline float spmd_float16_load(spmd_float16 h)
{
    uint32_t magnitude = (uint32_t)(h.bits & 0x7fff) << 13, exponent = magnitude & (0x1fu << 23);
    uint32_t normal = magnitude + ((127u - 15) << 23);
    uint32_t special = magnitude + ((255u - 31) << 23); /* infinities and NaNs */
    /* Below 2^-14 the significand has no leading one: put one there, then subtract it exactly. */
    float tiny = spmd_from_bits_f32(magnitude + (113u << 23)) - spmd_from_bits_f32(113u << 23);
    uint32_t bits = spmd_select_u32(exponent == 0x1fu << 23, special, normal);
    bits = spmd_select_u32(exponent == 0, spmd_bits_f32(tiny), bits);
    return spmd_from_bits_f32(bits | (uint32_t)(h.bits & 0x8000) << 16);
}

static inline spmd_float16 spmd_float16_store(float x)
{
    uint32_t bits = spmd_bits_f32(x), sign = bits & 0x80000000u, size = bits ^ sign;
    /* Adding 0.5 aligns the last place of a subnormal half with a float's; the sum rounds. */
    float aligned = spmd_from_bits_f32(spmd_select_u32(size < (113u << 23), size, 0)) + 0.5f;
    uint32_t tiny = spmd_bits_f32(aligned) - (126u << 23);
    uint32_t normal = (size - (112u << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    uint32_t half = spmd_select_u32(size < (113u << 23), tiny, normal);
    half = spmd_select_u32(size >= (143u << 23), 0x7c00, half);
    half = spmd_select_u32(size > (255u << 23), 0x7e00, half);
    return (spmd_float16){(uint16_t)(half | sign >> 16)};
}

/* A double goes through a float rounded to odd, so that the second rounding is the only one. */
static inline spmd_float16 spmd_float16_store_f64(double x)
{
    float near = spmd_round_f32(x);
    double back = (double)near;
    uint32_t bits = spmd_bits_f32(near);
    uint32_t outward = fabs(back) > fabs(x);
    uint32_t inexact = (back != x) & (x == x) & ((bits & 0x7fffffff) != 0x7f800000);
    uint32_t odd = (bits - (inexact & outward)) | inexact;
    return spmd_float16_store(spmd_from_bits_f32(spmd_select_u32(inexact, odd, bits)));
}

static inline float spmd_bfloat16_load(spmd_bfloat16 h)
{
    return spmd_from_bits_f32((uint32_t)h.bits << 16);
}

static inline spmd_bfloat16 spmd_bfloat16_store(float x)
{
    uint32_t bits = spmd_bits_f32(x);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t nan = (bits >> 16 & 0x8000) | 0x7fc0;
    return (spmd_bfloat16){
        (uint16_t)spmd_select_u32((bits & 0x7fffffff) > 0x7f800000u, nan, rounded)};
}

#endif
