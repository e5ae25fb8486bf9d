/* Sorting one contiguous lane of integers or complex numbers: ascending, NaN last.
 *
 * Floats are sorted as integers in their order (spmd_order_key). spmd_sort_lane_T works in place,
 * with scratch as long as the lane; spmd_argsort_lane_T is stable and takes four words for each
 * element. Neither allocates. T is a suffix as in spmd_support.h.
 */
#ifndef SPMD_SORT_H
#define SPMD_SORT_H

#include "spmd_support.h"

/* What is compiled once, however often it is called. */
#define SPMD_ROUTINE __attribute__((noinline, unused)) static

#define SPMD_LESS_PLAIN(a, b) ((a) < (b))
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

/* X(suffix, type, order) */
#define SPMD_SORTED(X)                                                                             \
    X(i8, int8_t, SPMD_LESS_PLAIN) X(i16, int16_t, SPMD_LESS_PLAIN)                                \
    X(i32, int32_t, SPMD_LESS_PLAIN) X(i64, int64_t, SPMD_LESS_PLAIN)                              \
    X(u8, uint8_t, SPMD_LESS_PLAIN) X(u16, uint16_t, SPMD_LESS_PLAIN)                              \
    X(u32, uint32_t, SPMD_LESS_PLAIN) X(u64, uint64_t, SPMD_LESS_PLAIN)                            \
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

/* ---- integers: long lanes by digits of eight bits, the last one first ---- */

/* shorter ones are compared */
enum { SPMD_SHORT_LANE = 512, SPMD_SHORT_ORDER = 128 };

#define SPMD_DIGIT(key, d) ((key) >> 8 * (d) & 255)

/* Where the elements with each digit begin; 0 where all have the same one. */
static inline int spmd_digit_begins(int64_t counts[256], int64_t n)
{
    int64_t at = 0;
    for (int d = 0; d < 256; d++) {
        int64_t many = counts[d];
        if (many == n)
            return 0;
        counts[d] = at;
        at += many;
    }
    return 1;
}

/* The bit that is turned so that elements stand in order as unsigned numbers. */
#define SPMD_TURN_i8 (1ULL << 7)
#define SPMD_TURN_i16 (1ULL << 15)
#define SPMD_TURN_i32 (1ULL << 31)
#define SPMD_TURN_i64 (1ULL << 63)
#define SPMD_TURN_u8 0ULL
#define SPMD_TURN_u16 0ULL
#define SPMD_TURN_u32 0ULL
#define SPMD_TURN_u64 0ULL

#define SPMD_RADIX_SORT(S, T, U)                                                                   \
    typedef struct {                                                                               \
        U key;                                                                                     \
        int64_t at;                                                                                \
    } spmd_placed_##S;                                                                             \
    static inline void spmd_count_digits_##S(const U *x, int64_t n, int64_t counts[][256])         \
    {                                                                                              \
        memset(counts, 0, sizeof(T) * sizeof *counts);                                             \
        for (int64_t i = 0; i < n; i++) {                                                          \
            U key = (U)(x[i] ^ SPMD_TURN_##S);                                                     \
            for (int d = 0; d < (int)sizeof(T); d++)                                               \
                counts[d][SPMD_DIGIT(key, d)]++;                                                   \
        }                                                                                          \
    }                                                                                              \
    SPMD_ROUTINE void spmd_sort_lane_##S(void *lane, void *spare, int64_t n)                       \
    {                                                                                              \
        if (n < SPMD_SHORT_LANE) {                                                                 \
            spmd_sort_##S(lane, n);                                                                \
            return;                                                                                \
        }                                                                                          \
        int64_t counts[sizeof(T)][256];                                                            \
        U *from = lane, *into = spare;                                                             \
        spmd_count_digits_##S(from, n, counts);                                                    \
        for (int d = 0; d < (int)sizeof(T); d++) {                                                 \
            if (!spmd_digit_begins(counts[d], n))                                                  \
                continue;                                                                          \
            for (int64_t i = 0; i < n; i++)                                                        \
                into[counts[d][SPMD_DIGIT((U)(from[i] ^ SPMD_TURN_##S), d)]++] = from[i];          \
            U *held = from;                                                                        \
            from = into;                                                                           \
            into = held;                                                                           \
        }                                                                                          \
        if (from != lane)                                                                          \
            memcpy(lane, from, (size_t)n * sizeof(T));                                             \
    }                                                                                              \
    SPMD_ROUTINE void spmd_argsort_lane_##S(const void *lane, int64_t n, int64_t *out,             \
                                             void *scratch)                                        \
    {                                                                                              \
        if (n < SPMD_SHORT_ORDER) {                                                                \
            spmd_argsort_##S(lane, n, out, scratch);                                               \
            return;                                                                                \
        }                                                                                          \
        int64_t counts[sizeof(T)][256];                                                            \
        spmd_placed_##S *from = scratch, *into = from + n;                                         \
        spmd_count_digits_##S(lane, n, counts);                                                    \
        for (int64_t i = 0; i < n; i++)                                                            \
            from[i] = (spmd_placed_##S){((const U *)lane)[i] ^ SPMD_TURN_##S, i};                  \
        for (int d = 0; d < (int)sizeof(T); d++) {                                                 \
            if (!spmd_digit_begins(counts[d], n))                                                  \
                continue;                                                                          \
            for (int64_t i = 0; i < n; i++)                                                        \
                into[counts[d][SPMD_DIGIT(from[i].key, d)]++] = from[i];                           \
            spmd_placed_##S *held = from;                                                          \
            from = into;                                                                           \
            into = held;                                                                           \
        }                                                                                          \
        for (int64_t i = 0; i < n; i++)                                                            \
            out[i] = from[i].at;                                                                   \
    }

SPMD_SIGNED(SPMD_RADIX_SORT)
SPMD_UNSIGNED(SPMD_RADIX_SORT)

/* Complex numbers have no digits. */
#define SPMD_SORT_COMPLEX(S, C, T, F, P)                                                           \
    SPMD_ROUTINE void spmd_sort_lane_##S(void *lane, void *spare, int64_t n)                       \
    {                                                                                              \
        (void)spare;                                                                               \
        spmd_sort_##S(lane, n);                                                                    \
    }                                                                                              \
    SPMD_ROUTINE void spmd_argsort_lane_##S(const void *lane, int64_t n, int64_t *out,             \
                                             void *scratch)                                        \
    {                                                                                              \
        spmd_argsort_##S(lane, n, out, scratch);                                                   \
    }

SPMD_COMPLEXES(SPMD_SORT_COMPLEX)

#endif
