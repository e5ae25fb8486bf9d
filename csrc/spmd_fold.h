/* How elements are folded: instances of spmd_fold for one type and one operation.
 *
 * A fold is bound by memory: every line is read once, stays in registers or the first-level cache
 * while all terms pass over it, and is asked for ahead of its use, lines to be written as well.
 */
#ifndef SPMD_FOLD_H
#define SPMD_FOLD_H

#include "spmd_image.h"

/* Folded at a time (measured best for 2 to 16 members), and how far ahead of that lines are
 * fetched: `bench all-reduce` shows it. */
#define SPMD_FOLD_BYTES 256
#define SPMD_FOLD_AHEAD 512

/* A line that is to be written is asked for as one's own: reading it first would cost another trip
 * to the core that has it. Compilers know of this instruction only where they are told of it;
 * processors that do not know it pass over it. */
static inline __attribute__((always_inline)) void spmd_ahead(const void *at, int for_write)
{
    for (int64_t byte = SPMD_FOLD_AHEAD; byte < SPMD_FOLD_AHEAD + SPMD_FOLD_BYTES; byte += 64) {
        const char *line = (const char *)at + byte;
#ifdef __x86_64__
        if (for_write)
            __asm__ volatile("prefetchw %0" : : "m"(*line));
        else
            __builtin_prefetch(line, 0);
#else
        if (for_write)
            __builtin_prefetch(line, 1);
        else
            __builtin_prefetch(line, 0);
#endif
    }
}

/* OP combines two T into a third. */
#define SPMD_FOLD_BODY(name, T, OP)                                                                \
    static inline __attribute__((always_inline)) void name##_part(const spmd_term *term,           \
                                                                  int64_t terms, int64_t at,       \
                                                                  int64_t n)                       \
    {                                                                                              \
        const T *first = (const T *)term->from + at;                                               \
        T total[SPMD_FOLD_BYTES / sizeof(T)];                                                      \
        spmd_ahead(first, 0);                                                                      \
        for (int64_t i = 0; i < n; i++)                                                            \
            total[i] = first[i];                                                                   \
        for (int64_t k = 0; k < terms; k++) {                                                      \
            const T *from = term[k].from;                                                          \
            T *into = term[k].into;                                                                \
            if (from && k > 0) {                                                                   \
                from += at;                                                                        \
                spmd_ahead(from, 0);                                                               \
                for (int64_t i = 0; i < n; i++)                                                    \
                    total[i] = OP(total[i], from[i]);                                              \
            }                                                                                      \
            if (into) {                                                                            \
                into += at;                                                                        \
                spmd_ahead(into, 1);                                                               \
                for (int64_t i = 0; i < n; i++)                                                    \
                    into[i] = total[i];                                                            \
            }                                                                                      \
        }                                                                                          \
    }

/* The constant n makes straight-line vector code of the loops. */
#define SPMD_FOLD_ON(name, where, T, target)                                                       \
    target static void name##_##where(const spmd_term *term, int64_t terms, int64_t n)             \
    {                                                                                              \
        const int64_t step = SPMD_FOLD_BYTES / sizeof(T);                                          \
        int64_t at = 0;                                                                            \
        for (; at + step <= n; at += step)                                                         \
            name##_part(term, terms, at, step);                                                    \
        if (at < n)                                                                                \
            name##_part(term, terms, at, n - at);                                                  \
    }

#if defined(__x86_64__) && !defined(__AVX2__)
#define SPMD_FOLD(name, T, OP)                                                                     \
    SPMD_FOLD_BODY(name, T, OP)                                                                    \
    SPMD_FOLD_ON(name, base, T, )                                                                  \
    SPMD_FOLD_ON(name, avx2, T, __attribute__((target("avx2"))))                                   \
    SPMD_FOLD_ON(name, avx512, T, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))   \
    static const spmd_fold name[] = {name##_base, name##_avx2, name##_avx512};
#elif defined(__x86_64__) && !defined(__AVX512F__)
#define SPMD_FOLD(name, T, OP)                                                                     \
    SPMD_FOLD_BODY(name, T, OP)                                                                    \
    SPMD_FOLD_ON(name, base, T, )                                                                  \
    SPMD_FOLD_ON(name, avx512, T, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))   \
    static const spmd_fold name[] = {name##_base, name##_base, name##_avx512};
#else
#define SPMD_FOLD(name, T, OP)                                                                     \
    SPMD_FOLD_BODY(name, T, OP)                                                                    \
    SPMD_FOLD_ON(name, base, T, )                                                                  \
    static const spmd_fold name[] = {name##_base, name##_base, name##_base};
#endif

#endif
