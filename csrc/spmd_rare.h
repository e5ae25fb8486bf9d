/* Functions whose rare arguments go to libm, in loops that vectorise all the same.
 *
 * SPMD_RARE_f32 and SPMD_RARE_f64 define NAME(a, b, near): near where USUAL, an expression of a and
 * b, holds; else LIBM. Loops call it for a vector at once, by the names that the vector ABI of
 * x86-64 has for "omp declare simd": a vector without rare elements costs one test. What an element
 * gets depends on its value alone. Other compilers and machines call it element after element.
 */
#ifndef SPMD_RARE_H
#define SPMD_RARE_H

#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)

/* vectors of 16, 32 and 64 bytes; whether one has a bit set in the sign of an element */
#define SPMD_RARE_VECTORS(BYTES)                                                                   \
    typedef float spmd_v##BYTES##_f32 __attribute__((vector_size(BYTES)));                         \
    typedef double spmd_v##BYTES##_f64 __attribute__((vector_size(BYTES)));                        \
    typedef int32_t spmd_v##BYTES##_i32 __attribute__((vector_size(BYTES)));                       \
    typedef int64_t spmd_v##BYTES##_i64 __attribute__((vector_size(BYTES)));                       \
    SPMD_RARE_LANES(BYTES, f32, float)                                                             \
    SPMD_RARE_LANES(BYTES, f64, double)
#define SPMD_RARE_LANES(BYTES, S, T)                                                               \
    __attribute__((cold, noinline, unused)) static spmd_v##BYTES##_##S spmd_lanes_##BYTES##_##S(   \
        spmd_v##BYTES##_##S a, spmd_v##BYTES##_##S b, spmd_v##BYTES##_##S near, T (*one)(T, T, T)) \
    {                                                                                              \
        T x[BYTES / sizeof(T)], y[BYTES / sizeof(T)], out[BYTES / sizeof(T)];                      \
        memcpy(x, &a, sizeof a), memcpy(y, &b, sizeof b), memcpy(out, &near, sizeof near);         \
        _Pragma("GCC unroll 1") for (unsigned k = 0; k < BYTES / sizeof(T); k++)                   \
            out[k] = one(x[k], y[k], out[k]);                                                      \
        memcpy(&near, out, sizeof near);                                                           \
        return near;                                                                               \
    }
#define SPMD_RARE_VECTOR(NAME, ISA, LANES, BYTES, S, I, USUAL)                                     \
    SPMD_RARE_SYMBOL(NAME, _ZGV##ISA##N##LANES##vvv_##NAME, BYTES, S, I, USUAL)
#define SPMD_RARE_SYMBOL(NAME, SYMBOL, BYTES, S, I, USUAL)                                         \
    static spmd_v##BYTES##_##S SYMBOL(spmd_v##BYTES##_##S, spmd_v##BYTES##_##S,                    \
                                      spmd_v##BYTES##_##S) __asm__(#SYMBOL);                       \
    __attribute__((used)) static spmd_v##BYTES##_##S SYMBOL(                                       \
        spmd_v##BYTES##_##S a, spmd_v##BYTES##_##S b, spmd_v##BYTES##_##S near)                    \
    {                                                                                              \
        spmd_v##BYTES##_##I rare = ~(spmd_v##BYTES##_##I)(USUAL);                                  \
        (void)b;                                                                                   \
        if (__builtin_expect(SPMD_ANY_##BYTES(rare), 0))                                           \
            return spmd_lanes_##BYTES##_##S(a, b, near, NAME##_one);                               \
        return near;                                                                               \
    }

SPMD_RARE_VECTORS(16)
#define SPMD_ANY_16(v) __builtin_ia32_movmskps((spmd_v16_f32)(v))
#define SPMD_RARE_16(...) SPMD_RARE_VECTOR(__VA_ARGS__)
#ifdef __AVX2__
SPMD_RARE_VECTORS(32)
#define SPMD_ANY_32(v) __builtin_ia32_movmskps256((spmd_v32_f32)(v))
#define SPMD_RARE_32(...) SPMD_RARE_VECTOR(__VA_ARGS__)
#else
#define SPMD_RARE_32(...)
#endif
#ifdef __AVX512F__
SPMD_RARE_VECTORS(64)
#define SPMD_ANY_64(v) __builtin_ia32_ptestmd512((spmd_v64_i32)(v), (spmd_v64_i32)(v), 0xffff)
#define SPMD_RARE_64(...) SPMD_RARE_VECTOR(__VA_ARGS__)
#else
#define SPMD_RARE_64(...)
#endif

#define SPMD_RARE(NAME, T, USUAL, LIBM)                                                            \
    __attribute__((simd("notinbranch"), const, visibility("hidden"))) T NAME(T a, T b, T near);    \
    static T NAME##_one(T, T, T) __asm__(#NAME);                                                   \
    __attribute__((used)) static T NAME##_one(T a, T b, T near)                                    \
    {                                                                                              \
        (void)b;                                                                                   \
        return (USUAL) ? near : LIBM;                                                              \
    }
#define SPMD_RARE_f32(NAME, USUAL, LIBM)                                                           \
    SPMD_RARE(NAME, float, USUAL, LIBM)                                                            \
    SPMD_RARE_16(NAME, b, 4, 16, f32, i32, USUAL)                                                  \
    SPMD_RARE_32(NAME, d, 8, 32, f32, i32, USUAL)                                                  \
    SPMD_RARE_64(NAME, e, 16, 64, f32, i32, USUAL)
#define SPMD_RARE_f64(NAME, USUAL, LIBM)                                                           \
    SPMD_RARE(NAME, double, USUAL, LIBM)                                                           \
    SPMD_RARE_16(NAME, b, 2, 16, f64, i64, USUAL)                                                  \
    SPMD_RARE_32(NAME, d, 4, 32, f64, i64, USUAL)                                                  \
    SPMD_RARE_64(NAME, e, 8, 64, f64, i64, USUAL)

#else

#define SPMD_RARE(NAME, T, USUAL, LIBM)                                                            \
    static inline T NAME(T a, T b, T near)                                                         \
    {                                                                                              \
        (void)b;                                                                                   \
        return (USUAL) ? near : LIBM;                                                              \
    }
#define SPMD_RARE_f32(NAME, USUAL, LIBM) SPMD_RARE(NAME, float, USUAL, LIBM)
#define SPMD_RARE_f64(NAME, USUAL, LIBM) SPMD_RARE(NAME, double, USUAL, LIBM)

#endif

#endif
