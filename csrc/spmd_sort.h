/* Sorting one contiguous lane: ascending, NaN last, complex by real then imaginary part.
 *
 * spmd_sort_T works in place. spmd_argsort_T is stable and takes its scratch from the caller, n
 * words of it. Neither allocates. T is a suffix as in spmd_support.h, or f16, bf16.
 */
#ifndef SPMD_SORT_H
#define SPMD_SORT_H

#include "spmd_support.h"

#define SPMD_LESS_PLAIN(a, b) ((a) < (b))
#define SPMD_LESS_FLOAT(a, b) (((a) < (b)) | (((b) != (b)) & ((a) == (a))))
#define SPMD_LESS_F16(a, b) SPMD_LESS_FLOAT(spmd_float16_load(a), spmd_float16_load(b))
#define SPMD_LESS_BF16(a, b) SPMD_LESS_FLOAT(spmd_bfloat16_load(a), spmd_bfloat16_load(b))
#define SPMD_LESS_C64(a, b) spmd_sorts_before_c64(a, b)
#define SPMD_LESS_C128(a, b) spmd_sorts_before_c128(a, b)

/* NumPy's order: R + Rj, R + NaNj, NaN + Rj, NaN + NaNj, where R is any number. */
#define SPMD_SORTS_BEFORE(S, C, T, F, P)                                                           \
    static inline int spmd_sorts_before_##S(C a, C b)                                              \
    {                                                                                              \
        T ar = creal##F(a), ai = cimag##F(a), br = creal##F(b), bi = cimag##F(b);                  \
        if (ar < br)                                                                               \
            return ai == ai || bi != bi;                                                           \
        if (ar > br)                                                                               \
            return bi != bi && ai == ai;                                                           \
        if (ar == br || (ar != ar && br != br))                                                    \
            return ai < bi || (bi != bi && ai == ai);                                              \
        return br != br;                                                                           \
    }

SPMD_COMPLEXES(SPMD_SORTS_BEFORE)

/* X(suffix, type in memory, order) */
#define SPMD_SORTED(X)                                                                             \
    X(i8, int8_t, SPMD_LESS_PLAIN) X(i16, int16_t, SPMD_LESS_PLAIN)                                \
    X(i32, int32_t, SPMD_LESS_PLAIN) X(i64, int64_t, SPMD_LESS_PLAIN)                              \
    X(u8, uint8_t, SPMD_LESS_PLAIN) X(u16, uint16_t, SPMD_LESS_PLAIN)                              \
    X(u32, uint32_t, SPMD_LESS_PLAIN) X(u64, uint64_t, SPMD_LESS_PLAIN)                            \
    X(f16, spmd_float16, SPMD_LESS_F16) X(bf16, spmd_bfloat16, SPMD_LESS_BF16)                     \
    X(f32, float, SPMD_LESS_FLOAT) X(f64, double, SPMD_LESS_FLOAT)                                 \
    X(c64, float _Complex, SPMD_LESS_C64) X(c128, double _Complex, SPMD_LESS_C128)

/* Quicksort around the median of three with a partition free of branches. Elements equal to the
 * pivot leave both sides when the lower one is short (many equal ones); a lane that resists (depth
 * used up) is finished by heapsort, so the worst case is n log n. */
#define SPMD_SORT(S, T, LESS)                                                                      \
    static inline void spmd_swap_##S(T *a, T *b)                                                   \
    {                                                                                              \
        T held = *a;                                                                               \
        *a = *b;                                                                                   \
        *b = held;                                                                                 \
    }                                                                                              \
    static inline void spmd_insertion_sort_##S(T *x, int64_t n)                                    \
    {                                                                                              \
        for (int64_t i = 1; i < n; i++) {                                                          \
            T held = x[i];                                                                         \
            int64_t j = i;                                                                         \
            for (; j > 0 && LESS(held, x[j - 1]); j--)                                             \
                x[j] = x[j - 1];                                                                   \
            x[j] = held;                                                                           \
        }                                                                                          \
    }                                                                                              \
    static inline void spmd_sift_##S(T *x, int64_t at, int64_t n)                                  \
    {                                                                                              \
        for (int64_t child; (child = 2 * at + 1) < n; at = child) {                                \
            child += child + 1 < n && LESS(x[child], x[child + 1]);                                \
            if (!LESS(x[at], x[child]))                                                            \
                return;                                                                            \
            spmd_swap_##S(x + at, x + child);                                                      \
        }                                                                                          \
    }                                                                                              \
    static inline void spmd_heapsort_##S(T *x, int64_t n)                                          \
    {                                                                                              \
        for (int64_t i = n / 2 - 1; i >= 0; i--)                                                   \
            spmd_sift_##S(x, i, n);                                                                \
        for (int64_t i = n - 1; i > 0; i--) {                                                      \
            spmd_swap_##S(x, x + i);                                                               \
            spmd_sift_##S(x, 0, i);                                                                \
        }                                                                                          \
    }                                                                                              \
    static inline int64_t spmd_partition_##S(T *x, int64_t n, int64_t *above)                      \
    {                                                                                              \
        T *mid = x + n / 2, *last = x + n - 1;                                                     \
        if (LESS(*mid, *x))                                                                        \
            spmd_swap_##S(mid, x);                                                                 \
        if (LESS(*last, *mid))                                                                     \
            spmd_swap_##S(last, mid);                                                              \
        if (LESS(*mid, *x))                                                                        \
            spmd_swap_##S(mid, x);                                                                 \
        spmd_swap_##S(mid, last); /* the pivot waits at the end */                                 \
        T pivot = *last;                                                                           \
        int64_t below = 0;                                                                         \
        for (int64_t i = 0; i < n - 1; i++) {                                                      \
            T held = x[i];                                                                         \
            x[i] = x[below];                                                                       \
            x[below] = held;                                                                       \
            below += LESS(held, pivot);                                                            \
        }                                                                                          \
        spmd_swap_##S(x + below, last);                                                            \
        *above = below + 1;                                                                        \
        for (int64_t i = below + 1; 8 * below < n && i < n; i++) {                                 \
            T held = x[i];                                                                         \
            x[i] = x[*above];                                                                      \
            x[*above] = held;                                                                      \
            *above += !LESS(pivot, held);                                                          \
        }                                                                                          \
        return below;                                                                              \
    }                                                                                              \
    static inline void spmd_sort_##S(void *data, int64_t n)                                        \
    {                                                                                              \
        struct { T *x; int64_t n; int depth; } todo[64], now = {data, n, 0};                       \
        int waiting = 0;                                                                           \
        for (int64_t left = n; left > 1; left >>= 1)                                               \
            now.depth += 2;                                                                        \
        for (;;) {                                                                                 \
            while (now.n > 16 && now.depth-- > 0) {                                                \
                int64_t above, below = spmd_partition_##S(now.x, now.n, &above);                   \
                T *x = now.x, *rest = x + above;                                                   \
                above = now.n - above;                                                             \
                todo[waiting] = now; /* the longer side waits: 64 places always suffice */         \
                todo[waiting].x = below > above ? x : rest;                                        \
                todo[waiting++].n = below > above ? below : above;                                 \
                now.x = below > above ? rest : x;                                                  \
                now.n = below > above ? above : below;                                             \
            }                                                                                      \
            if (now.n > 16)                                                                        \
                spmd_heapsort_##S(now.x, now.n);                                                   \
            else                                                                                   \
                spmd_insertion_sort_##S(now.x, now.n);                                             \
            if (waiting == 0)                                                                      \
                return;                                                                            \
            now = todo[--waiting];                                                                 \
        }                                                                                          \
    }

SPMD_SORTED(SPMD_SORT)

/* Merge sort from runs of 16, back and forth between `out` and `scratch`. */
#define SPMD_ARGSORT(S, T, LESS)                                                                   \
    static inline void spmd_merge_##S(const T *x, const int64_t *from, int64_t *into, int64_t mid, \
                                      int64_t n)                                                   \
    {                                                                                              \
        int64_t a = 0, b = mid;                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                          \
            int right = a == mid || (b < n && LESS(x[from[b]], x[from[a]]));                       \
            into[i] = from[right ? b : a];                                                         \
            a += !right;                                                                           \
            b += right;                                                                            \
        }                                                                                          \
    }                                                                                              \
    static inline void spmd_argsort_##S(const void *data, int64_t n, int64_t *out,                 \
                                        int64_t *scratch)                                          \
    {                                                                                              \
        const T *x = data;                                                                         \
        int64_t *from = out, *into = scratch;                                                      \
        for (int64_t i = 0; i < n; i++) {                                                          \
            int64_t j = i;                                                                         \
            for (; j % 16 != 0 && LESS(x[i], x[out[j - 1]]); j--)                                  \
                out[j] = out[j - 1];                                                               \
            out[j] = i;                                                                            \
        }                                                                                          \
        for (int64_t run = 16; run < n; run *= 2) {                                                \
            for (int64_t at = 0; at < n; at += 2 * run) {                                          \
                int64_t length = spmd_min(2 * run, n - at);                                        \
                spmd_merge_##S(x, from + at, into + at, spmd_min(run, length), length);            \
            }                                                                                      \
            int64_t *held = from;                                                                  \
            from = into;                                                                           \
            into = held;                                                                           \
        }                                                                                          \
        if (from != out)                                                                           \
            memcpy(out, from, (size_t)n * sizeof *out);                                            \
    }

SPMD_SORTED(SPMD_ARGSORT)

#endif
