/* Random numbers outside of images: what spmd.random gives on arrays of the host language. */
#define SPMD_RANDOM_FILL spmd_random_fill_any
#include "random.h"

#include <stdlib.h>

#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)

typedef struct pair {
    uint64_t key;
    int64_t place;
} pair;

/* One pass of a radix sort: by the digit that begins at a bit, stable. */
static void order_by_digit(pair *into, const pair *from, int64_t n, int bit)
{
    int64_t begin[DIGITS] = {0}, sum = 0;

    for (int64_t k = 0; k < n; k++)
        begin[from[k].key >> bit & (DIGITS - 1)]++;
    for (int digit = 0; digit < DIGITS; digit++) {
        int64_t count = begin[digit];
        begin[digit] = sum;
        sum += count;
    }
    for (int64_t k = 0; k < n; k++)
        into[begin[from[k].key >> bit & (DIGITS - 1)]++] = from[k];
}

/* By the first 33 bits in three passes; the few whose first bits are equal
 * are put right by insertion. */
int spmd_random_order(int64_t *into, const uint64_t *keys, int64_t n)
{
    pair *one = calloc(2 * (size_t)n + 1, sizeof *one), *other = one + n;

    if (!one)
        return SPMD_NO_MEMORY;
    for (int64_t k = 0; k < n; k++)
        one[k] = (pair){keys[k], k};
    order_by_digit(other, one, n, 64 - 3 * DIGIT_BITS);
    order_by_digit(one, other, n, 64 - 2 * DIGIT_BITS);
    order_by_digit(other, one, n, 64 - DIGIT_BITS);
    for (int64_t k = 0; k < n; k++) {
        pair mine = other[k];
        int64_t at = k;
        for (; at > 0 && other[at - 1].key > mine.key; at--)
            other[at] = other[at - 1];
        other[at] = mine;
    }
    for (int64_t k = 0; k < n; k++)
        into[k] = other[k].place;
    free(one);
    return SPMD_OK;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
void spmd_random_fill_avx2(void *, int64_t, int, uint64_t, uint64_t, uint64_t, uint64_t);
void spmd_random_fill_avx512(void *, int64_t, int, uint64_t, uint64_t, uint64_t, uint64_t);
#else
#define spmd_random_fill_avx2 spmd_random_fill_any
#define spmd_random_fill_avx512 spmd_random_fill_any
#define __builtin_cpu_supports(feature) 0
#endif

void spmd_random_fill(void *into, int64_t n, int what, uint64_t seed, uint64_t stream,
                      uint64_t start, uint64_t span)
{
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        spmd_random_fill_avx512(into, n, what, seed, stream, start, span);
    else if (__builtin_cpu_supports("avx2"))
        spmd_random_fill_avx2(into, n, what, seed, stream, start, span);
    else
        spmd_random_fill_any(into, n, what, seed, stream, start, span);
}
