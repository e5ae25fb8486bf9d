/* Products of matrices, for one instruction set and one element type: c = alpha a b, or added to c.
 *
 * A file defines T, the type of elements; LANES, how many a register holds; FMA, which multiplies
 * registers and adds; WORD, an integer as wide as T; ROWS, how many rows of c its registers hold;
 * GEMM, the name of its function. Then it includes this.
 *
 * A tile of c, ROWS by two registers, is summed in registers, over DEPTH terms. Matrices are read
 * where they lie. A panel of b, two registers wide, is copied only where b is transposed, where its
 * last columns fill no register, and where its rows meet in one set of the cache.
 * An element of c is the sum over blocks of DEPTH terms in order, each term added by one fused
 * operation: its bits do not depend on the tile that it lies in.
 * The tile is that of Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication,
 * 2008.
 */
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define PART(name) JOIN(GEMM, name)
/* Sanitizers would look at each of the unrolled loads: that takes minutes to compile. */
#define UNCHECKED no_sanitize("address", "undefined", "thread")
#define INLINE static inline __attribute__((always_inline, UNCHECKED))
#define NOINLINE static __attribute__((noinline, UNCHECKED))
#define DEPTH 256
#define COLUMNS (2 * LANES)
#define CACHE_BYTES 4096 /* rows of b that lie so far apart meet in one set of the nearest cache */
#define COPY_ROWS 32     /* of a: with fewer, the copy of such a panel takes longer than it saves */
#define FAR_ROWS 384     /* of a: with more, a panel is read so often that every copy pays */

#define lanes PART(lanes)
#define four PART(four)
#define places PART(places)
typedef T lanes __attribute__((vector_size(LANES * sizeof(T)), aligned(sizeof(T)), may_alias));
typedef T four __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));
typedef WORD places __attribute__((vector_size(4 * sizeof(T))));

/* A matrix: element (i, j) is at[i * row + j * column]. */
#define matrix PART(matrix)
typedef struct matrix {
    const T *at;
    int64_t row, column;
} matrix;

/* What becomes of the sums: c = alpha sums, with `adds` c += alpha sums. */
#define result PART(result)
typedef struct result {
    T *at;
    int64_t row;
    T alpha;
    int adds;
} result;

/* A tile of `rows` rows and `wide` registers. With constants for both, sums are in registers. */
INLINE void PART(tile)(int rows, int wide, int64_t depth, matrix a, matrix b, result c)
{
    lanes sum[ROWS][2];

#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < wide; j++)
            sum[i][j] = (lanes){0};
    for (int64_t p = 0; p < depth; p++) {
        lanes right[2];
#pragma GCC unroll 2
        for (int j = 0; j < wide; j++)
            right[j] = *(const lanes *)(b.at + p * b.row + LANES * j);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            lanes left = a.at[i * a.row + p * a.column] - (lanes){0};
#pragma GCC unroll 2
            for (int j = 0; j < wide; j++)
                sum[i][j] = FMA(left, right[j], sum[i][j]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < wide; j++) {
            lanes *into = (lanes *)(c.at + i * c.row + LANES * j), product = c.alpha * sum[i][j];
            if (c.adds)
                product += *into;
            *into = product;
        }
}

#define TILE(n)                                                                                    \
    case n:                                                                                        \
        PART(tile)(n, wide, depth, a, b, c);                                                       \
        return;

/* The same with any number of rows, up to ROWS. */
INLINE void PART(rows)(int rows, int wide, int64_t depth, matrix a, matrix b, result c)
{
    switch (rows) {
        TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#if ROWS == 12
        TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif
    }
}

/* Good tiles need constants for the width and for one stride, and all registers: no inlining. */
NOINLINE void PART(plain_two)(int rows, int64_t depth, matrix a, matrix b, result c)
{
    PART(rows)(rows, 2, depth, (matrix){a.at, a.row, 1}, b, c);
}

NOINLINE void PART(plain_one)(int rows, int64_t depth, matrix a, matrix b, result c)
{
    PART(rows)(rows, 1, depth, (matrix){a.at, a.row, 1}, b, c);
}

NOINLINE void PART(transposed_two)(int rows, int64_t depth, matrix a, matrix b, result c)
{
    PART(rows)(rows, 2, depth, (matrix){a.at, 1, a.column}, b, c);
}

NOINLINE void PART(transposed_one)(int rows, int64_t depth, matrix a, matrix b, result c)
{
    PART(rows)(rows, 1, depth, (matrix){a.at, 1, a.column}, b, c);
}

/* Copy `some` columns of b into a panel whose rows have `wide` elements; zeros fill them. */
static void PART(copy)(T *panel, matrix b, int64_t depth, int some, int wide)
{
    for (int64_t p = 0; p < depth; p++) {
        for (int j = 0; j < some; j++)
            panel[p * wide + j] = b.at[p * b.row + j];
        for (int j = some; j < wide; j++)
            panel[p * wide + j] = 0;
    }
}

/* Copy four columns of a transposed b, which lie as rows of four times four elements. */
INLINE void PART(copy_four)(T *panel, const T *at, int64_t apart, int wide)
{
    four w = *(const four *)at, x = *(const four *)(at + apart);
    four y = *(const four *)(at + 2 * apart), z = *(const four *)(at + 3 * apart);
    places low = {0, 4, 1, 5}, high = {2, 6, 3, 7};
    four wy = __builtin_shuffle(w, y, low), xz = __builtin_shuffle(x, z, low);

    *(four *)panel = __builtin_shuffle(wy, xz, low);
    *(four *)(panel + wide) = __builtin_shuffle(wy, xz, high);
    wy = __builtin_shuffle(w, y, high), xz = __builtin_shuffle(x, z, high);
    *(four *)(panel + 2 * wide) = __builtin_shuffle(wy, xz, low);
    *(four *)(panel + 3 * wide) = __builtin_shuffle(wy, xz, high);
}

static void PART(copy_transposed)(T *panel, matrix b, int64_t depth, int some, int wide)
{
    int j = 0;

    for (; j + 4 <= some; j += 4) {
        const T *at = b.at + j * b.column;
        int64_t p = 0;
        for (; p + 4 <= depth; p += 4)
            PART(copy_four)(panel + p * wide + j, at + p, b.column, wide);
        for (; p < depth; p++)
            for (int q = 0; q < 4; q++)
                panel[p * wide + j + q] = at[q * b.column + p];
    }
    for (; j < wide; j++)
        for (int64_t p = 0; p < depth; p++)
            panel[p * wide + j] = j < some ? b.at[j * b.column + p] : 0;
}

/* All rows of a with one panel of b, of `some` columns in `wide` registers. */
static void PART(panel)(int64_t m, int64_t depth, int some, int wide, matrix a, matrix b, result c)
{
    int64_t tiles = (m + ROWS - 1) / ROWS;
    int is_transposed = a.column != 1, is_short = some != wide * LANES;
    T out[ROWS * COLUMNS];

    for (int64_t t = 0, i = 0; t < tiles; t++) {
        int rows = (int)(m * (t + 1) / tiles - i);
        matrix left = {a.at + i * a.row, a.row, a.column};
        result whole = {c.at + i * c.row, c.row, c.alpha, c.adds};
        result into = is_short ? (result){out, wide * LANES, c.alpha, 0} : whole;
        if (wide == 2 && is_transposed)
            PART(transposed_two)(rows, depth, left, b, into);
        else if (wide == 2)
            PART(plain_two)(rows, depth, left, b, into);
        else if (is_transposed)
            PART(transposed_one)(rows, depth, left, b, into);
        else
            PART(plain_one)(rows, depth, left, b, into);
        for (int r = 0; is_short && r < rows; r++)
            for (int j = 0; j < some; j++) {
                T *at = whole.at + r * whole.row + j, product = out[r * into.row + j];
                *at = c.adds ? *at + product : product;
            }
        i += rows;
    }
}

/* Matrices row by row, or transposed: element (i, p) of a is then a[p * lda + i]. */
void GEMM(int a_is_transposed, int b_is_transposed, int64_t m, int64_t n, int64_t k, T alpha,
          const T *a, int64_t lda, const T *b, int64_t ldb, int adds, T *c, int64_t ldc)
{
    __attribute__((aligned(64))) T panel[DEPTH * COLUMNS];
    matrix left = {a, a_is_transposed ? 1 : lda, a_is_transposed ? lda : 1};
    matrix right = {b, b_is_transposed ? 1 : ldb, b_is_transposed ? ldb : 1};
    int copies = b_is_transposed || m > FAR_ROWS ||
                 (m >= COPY_ROWS && ldb * (int64_t)sizeof(T) % CACHE_BYTES == 0);

    for (int64_t p = 0; p < k; p += DEPTH) {
        int64_t depth = k - p < DEPTH ? k - p : DEPTH;
        matrix here = {left.at + p * left.column, left.row, left.column};
        for (int64_t j = 0; j < n; j += COLUMNS) {
            int some = n - j < COLUMNS ? (int)(n - j) : COLUMNS, wide = some > LANES ? 2 : 1;
            matrix from = {right.at + p * right.row + j * right.column, right.row, right.column};
            if (b_is_transposed)
                PART(copy_transposed)(panel, from, depth, some, wide * LANES);
            else if (copies || some != wide * LANES)
                PART(copy)(panel, from, depth, some, wide * LANES);
            if (copies || some != wide * LANES)
                from = (matrix){panel, wide * LANES, 1};
            PART(panel)(m, depth, some, wide, here, from, (result){c + j, ldc, alpha, adds || p});
        }
    }
}

#undef T
#undef WORD
#undef LANES
#undef FMA
#undef GEMM
#undef JOIN_
#undef JOIN
#undef PART
#undef UNCHECKED
#undef INLINE
#undef NOINLINE
#undef DEPTH
#undef COLUMNS
#undef COPY_ROWS
#undef CACHE_BYTES
#undef FAR_ROWS
#undef TILE
#undef lanes
#undef four
#undef places
#undef matrix
#undef result
