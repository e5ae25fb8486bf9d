/* Rows of integers, contiguous and one after the other: merged, partitioned, counted, searched.
 *
 * Floats come as integers in their order (spmd_order_key). Nothing allocates. T is a suffix as in
 * spmd_support.h; n elements stand in a row.
 */
#ifndef SPMD_ROWS_H
#define SPMD_ROWS_H

#include "spmd_sort.h"

/* spmd_merge: of two sorted rows of n elements each, the n that stand first (side 1) or last (2)
 * when they are merged; side 0: the first row. Four places of the result are filled at once, since
 * each element waits for the one before it. spmd_merge_placed: equal ones in the order of places,
 * which no two elements have in common. */
#define SPMD_MERGE_ROWS(S, T, U)                                                                   \
    static inline int64_t spmd_before_##S(const T *a, const T *b, int64_t n, int64_t first)        \
    {                                                                                              \
        int64_t low = spmd_max(0, first - n), high = spmd_min(first, n);                           \
        while (low < high) { /* how many of a are among the first */                               \
            int64_t mid = (low + high) / 2;                                                        \
            if (b[first - 1 - mid] < a[mid])                                                       \
                high = mid;                                                                        \
            else                                                                                   \
                low = mid + 1;                                                                     \
        }                                                                                          \
        return low;                                                                                \
    }                                                                                              \
    static inline void spmd_merge_up_##S(const T *a, const T *b, T *restrict out, int64_t n)       \
    {                                                                                              \
        const T *x[4], *y[4];                                                                      \
        int64_t quarter = n / 4;                                                                   \
        for (int q = 0; q < 4; q++) {                                                              \
            int64_t i = spmd_before_##S(a, b, n, q * quarter);                                     \
            x[q] = a + i;                                                                          \
            y[q] = b + q * quarter - i;                                                            \
        }                                                                                          \
        for (int64_t k = 0; k < n - 3 * quarter; k++) {                                            \
            for (int q = k < quarter ? 0 : 3; q < 4; q++) {                                        \
                U u = (U)*x[q], v = (U)*y[q], right = *y[q] < *x[q];                               \
                out[q * quarter + k] = (T)(u ^ ((u ^ v) & (U)(0 - right)));                        \
                y[q] += right;                                                                     \
                x[q] += 1 - right;                                                                 \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static inline void spmd_merge_down_##S(const T *a, const T *b, T *restrict out, int64_t n)     \
    {                                                                                              \
        const T *x[4], *y[4];                                                                      \
        int64_t quarter = n / 4;                                                                   \
        for (int q = 0; q < 4; q++) {                                                              \
            int64_t i = spmd_before_##S(a, b, n, 2 * n - q * quarter);                             \
            x[q] = a + i - 1;                                                                      \
            y[q] = b + 2 * n - q * quarter - i - 1;                                                \
        }                                                                                          \
        for (int64_t k = 0; k < n - 3 * quarter; k++) {                                            \
            for (int q = k < quarter ? 0 : 3; q < 4; q++) {                                        \
                U u = (U)*x[q], v = (U)*y[q], right = *y[q] >= *x[q];                              \
                out[n - 1 - q * quarter - k] = (T)(u ^ ((u ^ v) & (U)(0 - right)));                \
                y[q] -= right;                                                                     \
                x[q] -= 1 - right;                                                                 \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    SPMD_ROUTINE void spmd_merge_rows_##S(const void *mine, const void *theirs, int64_t side,      \
                                           void *out, int64_t rows, int64_t n)                     \
    {                                                                                              \
        for (int64_t at = 0; at < rows * n; at += n) {                                             \
            const T *a = (const T *)mine + at, *b = (const T *)theirs + at;                        \
            if (side == 0)                                                                         \
                memcpy((T *)out + at, a, (size_t)n * sizeof(T));                                   \
            else if (side == 1)                                                                    \
                spmd_merge_up_##S(a, b, (T *)out + at, n);                                         \
            else                                                                                   \
                spmd_merge_down_##S(a, b, (T *)out + at, n);                                       \
        }                                                                                          \
    }                                                                                              \
    SPMD_ROUTINE void spmd_merge_placed_##S(                                                       \
        const void *mine, const void *theirs, const int64_t *mine_at, const int64_t *theirs_at,    \
        int64_t side, void *out, int64_t *out_at, int64_t rows, int64_t n)                         \
    {                                                                                              \
        int64_t step = side == 2 ? -1 : 1;                                                         \
        for (int64_t row = 0; row < rows * n; row += n) {                                          \
            int64_t first = row + (side == 2 ? n - 1 : 0), i = first, j = first, k = first;        \
            for (int64_t left = n; left > 0; left--, k += step) {                                  \
                T x = ((const T *)mine)[i], y = ((const T *)theirs)[j];                            \
                int64_t p = mine_at[i], q = theirs_at[j];                                          \
                int64_t less = (y < x) | ((y == x) & (q < p));                                     \
                int64_t right = (side != 0) & (less ^ (side == 2));                                \
                ((T *)out)[k] = (T)((U)x ^ (((U)x ^ (U)y) & (U)(0 - (U)right)));                   \
                out_at[k] = p ^ ((p ^ q) & -right);                                                \
                i += step * (1 - right);                                                           \
                j += step * right;                                                                 \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    /* The element that sorting puts at position k stands there, no larger one before it. */       \
    static inline void spmd_place_##S(T *x, int64_t n, int64_t k)                                  \
    {                                                                                              \
        if (k == 0) {                                                                              \
            T least = x[0];                                                                        \
            for (int64_t i = 1; i < n; i++)                                                        \
                least = x[i] < least ? x[i] : least;                                               \
            int64_t at = 0;                                                                        \
            while (x[at] != least)                                                                 \
                at++;                                                                              \
            spmd_swap_##S(x, x + at);                                                              \
            return;                                                                                \
        }                                                                                          \
        int depth = 0;                                                                             \
        for (int64_t left = n; left > 1; left >>= 1)                                               \
            depth += 2;                                                                            \
        while (n > 16 && depth-- > 0) {                                                            \
            int64_t above, below = spmd_partition_##S(x, n, &above);                               \
            if (k >= below && k < above)                                                           \
                return;                                                                            \
            int64_t skip = k < below ? 0 : above;                                                  \
            n = k < below ? below : n - above;                                                     \
            x += skip;                                                                             \
            k -= skip;                                                                             \
        }                                                                                          \
        if (n > 16)                                                                                \
            spmd_heapsort_##S(x, n);                                                               \
        else                                                                                       \
            spmd_insertion_sort_##S(x, n);                                                         \
    }                                                                                              \
    /* Of each row, at the places that are asked for: one after the other where they rise. */      \
    SPMD_ROUTINE void spmd_partition_rows_##S(void *data, const int64_t *places, int64_t many,     \
                                               int64_t rows, int64_t n)                            \
    {                                                                                              \
        T *x = data;                                                                               \
        for (int64_t row = 0; n > 0 && row < rows; row++, x += n, places += many) {                \
            int64_t done = 0; /* no larger element stands before this place */                     \
            for (int64_t j = 0; j < many; j++) {                                                   \
                int64_t k = spmd_min(spmd_max(places[j], 0), n - 1);                               \
                done = k < done ? 0 : done;                                                        \
                spmd_place_##S(x + done, n - done, k - done);                                      \
                done = k;                                                                          \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    /* Of the elements whose leading bits are given, how many have which `bits` behind them;       \
     * below those are `shift` more. The highest bit is turned where T has a sign. */              \
    SPMD_ROUTINE void spmd_count_rows_##S(const void *data, const int64_t *leading,                \
                                           int64_t shift, int64_t bits, int64_t *counts,           \
                                           int64_t rows, int64_t n, int64_t many)                  \
    {                                                                                              \
        const int64_t width = 8 * (int64_t)sizeof(T), places = (int64_t)1 << bits;                 \
        const uint64_t top = SPMD_TURN_##S;                                                        \
        memset(counts, 0, (size_t)(rows * many * places) * sizeof *counts);                        \
        for (int64_t at = 0; at < rows * many; at++, counts += places) {                           \
            const U *x = (const U *)data + at / many * n;                                          \
            const uint64_t wanted = (uint64_t)leading[at], mask = (uint64_t)places - 1;            \
            for (int64_t i = 0; i < n; i++) {                                                      \
                uint64_t key = (x[i] ^ top) >> shift;                                              \
                if (shift + bits == width || key >> bits == wanted)                                \
                    counts[key & mask]++;                                                          \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static inline int64_t spmd_goes_on_##S(T element, T value, int64_t right)                      \
    {                                                                                              \
        return (element < value) | (right & (element == value));                                   \
    }                                                                                              \
    /* How many of a sorted row are less than each value; right: or equal. Some values at a time   \
     * take each step, so that none waits alone for memory. */                                     \
    SPMD_ROUTINE void spmd_search_##S(const void *row, const void *values, int64_t right,          \
                                       int64_t *restrict out, int64_t n, int64_t many)             \
    {                                                                                              \
        const T *x = row, *value = values;                                                         \
        for (int64_t some; many > 0; many -= some, value += some, out += some) {                   \
            some = spmd_min(many, 16);                                                             \
            for (int64_t j = 0; j < some; j++)                                                     \
                out[j] = 0;                                                                        \
            for (int64_t left = n; left > 1; left -= left / 2)                                     \
                for (int64_t j = 0, half = left / 2; j < some; j++)                                \
                    out[j] += half * spmd_goes_on_##S(x[out[j] + half - 1], value[j], right);      \
            for (int64_t j = 0; n > 0 && j < some; j++)                                            \
                out[j] += spmd_goes_on_##S(x[out[j]], value[j], right);                            \
        }                                                                                          \
    }

SPMD_SIGNED(SPMD_MERGE_ROWS)
SPMD_UNSIGNED(SPMD_MERGE_ROWS)

/* spmd_merge_tuples: as spmd_merge_rows of elements that are columns of `tall` numbers each,
 * compared from their top; a row has them one below the other. */
SPMD_ROUTINE void spmd_merge_tuples_i64(const int64_t *mine, const int64_t *theirs, int64_t side,
                                        int64_t *restrict out, int64_t rows, int64_t tall,
                                        int64_t n)
{
    int64_t step = side == 2 ? -1 : 1;
    for (int64_t row = 0; row < rows * tall * n; row += tall * n) {
        int64_t first = row + (side == 2 ? n - 1 : 0), i = first, j = first, k = first;
        for (int64_t left = n; left > 0; left--, k += step) {
            int64_t at = 0;
            while (at < (tall - 1) * n && mine[i + at] == theirs[j + at])
                at += n;
            int64_t less = theirs[j + at] < mine[i + at];
            int64_t right = (side != 0) & (less ^ (side == 2));
            const int64_t *from = right ? theirs + j : mine + i;
            for (at = 0; at < tall * n; at += n)
                out[k + at] = from[at];
            i += step * (1 - right);
            j += step * right;
        }
    }
}

#endif
