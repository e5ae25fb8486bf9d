/* Strided copies. Dims that lie contiguous on both sides are merged first, so that the common
 * cases end as one memcpy; a copy never looks at element types, only at their size. */
#include "parts.h"
#include "spmd_fold.h"

#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

/* Above, the C library's own copy is slower here: `bench all-gather --sizes 1k-1m` shows it. */
#define RUN_BYTES 2048
#define RUN_BLOCK SPMD_FOLD_BYTES

/* A region of two arrays at once, after merging: dims from outer to inner. The sides may have
 * elements of different sizes, so no stride of one side is compared with the other side's size. */
typedef struct spmd_region {
    int64_t dims;
    int64_t into_size, from_size; /* bytes of an element */
    int64_t extent[SPMD_DIMS];
    int64_t into[SPMD_DIMS], from[SPMD_DIMS]; /* strides in bytes */
} spmd_region;

/* false: there is nothing in the region. */
static bool region_merge(spmd_region *region, const int64_t *extent, const int64_t *into,
                         int64_t into_size, const int64_t *from, int64_t from_size, int64_t dims)
{
    region->dims = 0;
    region->into_size = into_size;
    region->from_size = from_size;
    for (int64_t d = 0; d < dims; d++) {
        if (extent[d] <= 0)
            return false;
        if (extent[d] == 1)
            continue;
        int64_t last = region->dims - 1;
        if (last >= 0 && region->into[last] == into[d] * extent[d] &&
            region->from[last] == from[d] * extent[d]) {
            region->extent[last] *= extent[d];
            region->into[last] = into[d];
            region->from[last] = from[d];
            continue;
        }
        region->extent[region->dims] = extent[d];
        region->into[region->dims] = into[d];
        region->from[region->dims] = from[d];
        region->dims++;
    }
    return true;
}

static void dims_swap(spmd_region *region, int64_t a, int64_t b)
{
    int64_t *all[] = {region->extent, region->into, region->from};
    for (int64_t k = 0; a != b && k < 3; k++) {
        int64_t kept = all[k][a];
        all[k][a] = all[k][b];
        all[k][b] = kept;
    }
}

/* Whether the sides are contiguous along two dims: then those become the innermost, that of `into`
 * last. The order of the others decides nothing. */
static bool region_turn(spmd_region *region)
{
    int64_t columns = -1, rows = -1, last = region->dims - 1;
    for (int64_t d = 0; d <= last; d++) {
        bool into = region->into[d] == region->into_size;
        bool from = region->from[d] == region->from_size;
        if (into && !from)
            columns = d;
        if (from && !into)
            rows = d;
    }
    if (columns < 0 || rows < 0)
        return false;
    dims_swap(region, columns, last);
    dims_swap(region, rows == last ? columns : rows, last - 1);
    return true;
}

/* The innermost dim has one element and was merged away: element by element. */
static void region_deepen(spmd_region *region)
{
    assert(region->dims < SPMD_DIMS && "the innermost stride of a box is its element");
    region->into[region->dims] = region->into_size;
    region->from[region->dims] = region->from_size;
    region->extent[region->dims++] = 1;
}

static void swap_element(char *into, const char *from, int64_t size, int64_t swap)
{
    for (int64_t part = 0; part < size; part += swap)
        for (int64_t byte = 0; byte < swap; byte++)
            into[part + byte] = from[part + swap - 1 - byte];
}

#define COPY_STRIDED(bytes)                                                                        \
    for (int64_t k = 0; k < n; k++)                                                                \
    memcpy(into + k * into_stride, from + k * from_stride, bytes)

/* Long runs come from, and go to, lines that other cores have: they are asked for ahead, those to
 * be written as one's own. */
#ifdef __x86_64__
typedef char lanes __attribute__((vector_size(32), aligned(1), may_alias));

static __attribute__((target("avx2"))) void run_copy_wide(char *into, const char *from, int64_t n)
{
    int64_t at = 0;
    for (; at + RUN_BLOCK <= n; at += RUN_BLOCK) {
        spmd_ahead(from + at, 0);
        spmd_ahead(into + at, 1);
        for (int64_t k = 0; k < RUN_BLOCK; k += (int64_t)sizeof(lanes))
            *(lanes *)(into + at + k) = *(const lanes *)(from + at + k);
    }
    memcpy(into + at, from + at, (size_t)(n - at));
}

void spmd_run_copy(char *into, const char *from, int64_t n)
{
    if (n >= RUN_BYTES && __builtin_cpu_supports("avx2"))
        run_copy_wide(into, from, n);
    else
        memcpy(into, from, (size_t)n);
}
#else
void spmd_run_copy(char *into, const char *from, int64_t n)
{
    memcpy(into, from, (size_t)n);
}
#endif

#ifdef __x86_64__
/* Whether the processor copies strings by whole lines, which it need not fetch before. */
static bool copies_lines(void)
{
    static _Atomic int known; /* 0: not yet */
    unsigned a, b = 0, c, d;

    if (!known) {
        bool erms = __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & 1u << 9;
        known = erms ? 1 : -1;
    }
    return known > 0;
}

void spmd_copy_lines(char *into, const char *from, int64_t bytes)
{
    if (copies_lines())
        __asm__ volatile("rep movsb" : "+D"(into), "+S"(from), "+c"(bytes) : : "memory");
    else
        memcpy(into, from, (size_t)bytes);
}
#else
void spmd_copy_lines(char *into, const char *from, int64_t bytes)
{
    memcpy(into, from, (size_t)bytes);
}
#endif

/* One innermost dim. The constant sizes become single loads and stores. */
static void row_copy(char *into, int64_t into_stride, const char *from, int64_t from_stride,
                     int64_t n, int64_t size, int64_t swap)
{
    if (swap)
        for (int64_t k = 0; k < n; k++)
            swap_element(into + k * into_stride, from + k * from_stride, size, swap);
    else if (into_stride == size && from_stride == size)
        spmd_run_copy(into, from, n * size);
    else if (size == 4)
        COPY_STRIDED(4);
    else if (size == 8)
        COPY_STRIDED(8);
    else if (size == 1)
        COPY_STRIDED(1);
    else if (size == 2)
        COPY_STRIDED(2);
    else if (size == 16)
        COPY_STRIDED(16);
    else
        COPY_STRIDED((size_t)size);
}

/* Two dims that change places: `into` is contiguous along columns, `from` along rows. In tiles, so
 * that a line of either is used while it is in the cache. */
#define TILE_ROWS 64
#define TILE_COLUMNS 16
#define TAKE_BYTES (32 * TILE_ROWS * 8) /* half of a first-level cache, at most */

typedef struct spmd_tile {
    char *into;
    const char *from;
    int64_t into_stride, from_row, from_stride; /* of rows, rows, columns: bytes */
    int64_t rows, columns, size;
} spmd_tile;

static void tile_copy(const spmd_tile *t)
{
    for (int64_t row = 0; row < t->rows; row++)
        row_copy(t->into + row * t->into_stride, t->size, t->from + row * t->from_row,
                 t->from_stride, t->columns, t->size, 0);
}

#ifdef __x86_64__
/* Four by four at a time, where the tile is full; false: it is not, or nobody knows the size. */
static __attribute__((target("avx"))) bool tile_copy_8(const spmd_tile *t)
{
    for (int64_t row = 0; row < TILE_ROWS; row += 4)
        for (int64_t column = 0; column < TILE_COLUMNS; column += 4) {
            const char *from = t->from + row * 8 + column * t->from_stride;
            char *into = t->into + row * t->into_stride + column * 8;
            __m256d a = _mm256_loadu_pd((const double *)from);
            __m256d b = _mm256_loadu_pd((const double *)(from + t->from_stride));
            __m256d c = _mm256_loadu_pd((const double *)(from + 2 * t->from_stride));
            __m256d d = _mm256_loadu_pd((const double *)(from + 3 * t->from_stride));
            __m256d even = _mm256_unpacklo_pd(a, b), odd = _mm256_unpackhi_pd(a, b);
            __m256d even_2 = _mm256_unpacklo_pd(c, d), odd_2 = _mm256_unpackhi_pd(c, d);
            _mm256_storeu_pd((double *)into, _mm256_permute2f128_pd(even, even_2, 0x20));
            _mm256_storeu_pd((double *)(into + t->into_stride),
                             _mm256_permute2f128_pd(odd, odd_2, 0x20));
            _mm256_storeu_pd((double *)(into + 2 * t->into_stride),
                             _mm256_permute2f128_pd(even, even_2, 0x31));
            _mm256_storeu_pd((double *)(into + 3 * t->into_stride),
                             _mm256_permute2f128_pd(odd, odd_2, 0x31));
        }
    return true;
}

static bool tile_copy_4(const spmd_tile *t)
{
    for (int64_t row = 0; row < TILE_ROWS; row += 4)
        for (int64_t column = 0; column < TILE_COLUMNS; column += 4) {
            const char *from = t->from + row * 4 + column * t->from_stride;
            char *into = t->into + row * t->into_stride + column * 4;
            __m128 a = _mm_loadu_ps((const float *)from);
            __m128 b = _mm_loadu_ps((const float *)(from + t->from_stride));
            __m128 c = _mm_loadu_ps((const float *)(from + 2 * t->from_stride));
            __m128 d = _mm_loadu_ps((const float *)(from + 3 * t->from_stride));
            _MM_TRANSPOSE4_PS(a, b, c, d);
            _mm_storeu_ps((float *)into, a);
            _mm_storeu_ps((float *)(into + t->into_stride), b);
            _mm_storeu_ps((float *)(into + 2 * t->into_stride), c);
            _mm_storeu_ps((float *)(into + 3 * t->into_stride), d);
        }
    return true;
}

static bool tile_copy_wide(const spmd_tile *t)
{
    if (t->rows != TILE_ROWS || t->columns != TILE_COLUMNS || t->from_row != t->size)
        return false;
    if (t->size == 8 && __builtin_cpu_supports("avx"))
        return tile_copy_8(t);
    return t->size == 4 && tile_copy_4(t);
}
#else
static bool tile_copy_wide(const spmd_tile *t)
{
    (void)t;
    return false;
}
#endif

static void turned_copy(const spmd_tile *all)
{
    for (int64_t row = 0; row < all->rows; row += TILE_ROWS)
        for (int64_t column = 0; column < all->columns; column += TILE_COLUMNS) {
            spmd_tile t = *all;
            t.into += row * t.into_stride + column * t.size;
            t.from += row * t.from_row + column * t.from_stride;
            t.rows = spmd_least(all->rows - row, TILE_ROWS);
            t.columns = spmd_least(all->columns - column, TILE_COLUMNS);
            if (!tile_copy_wide(&t))
                tile_copy(&t);
        }
}

/* Advances `at`, a position over the outer dims, as an odometer does; false after the last one. */
static bool region_next(const spmd_region *region, int64_t outer, int64_t *at, char **into,
                        const char **from)
{
    for (int64_t d = outer - 1; d >= 0; d--) {
        *into += region->into[d];
        if (from)
            *from += region->from[d];
        if (++at[d] < region->extent[d])
            return true;
        *into -= at[d] * region->into[d];
        if (from)
            *from -= at[d] * region->from[d];
        at[d] = 0;
    }
    return false;
}

void spmd_array_copy(char *into, const int64_t *into_stride, const char *from,
                     const int64_t *from_stride, const int64_t *extent, int64_t dims,
                     int64_t size, int64_t swap)
{
    spmd_region region;
    int64_t at[SPMD_DIMS] = {0};

    if (!region_merge(&region, extent, into_stride, size, from_stride, size, dims))
        return;
    if (region.dims == 0) {
        row_copy(into, size, from, size, 1, size, swap);
        return;
    }
    int64_t inner = region.dims - 1;
    if (!swap && region_turn(&region)) {
        spmd_tile all = {NULL, NULL, region.into[inner - 1], size, region.from[inner],
                         region.extent[inner - 1], region.extent[inner], size};
        do {
            all.into = into;
            all.from = from;
            turned_copy(&all);
        } while (region_next(&region, inner - 1, at, &into, &from));
        return;
    }
    do
        row_copy(into, region.into[inner], from, region.from[inner], region.extent[inner], size,
                 swap);
    while (region_next(&region, inner, at, &into, &from));
}

int64_t spmd_box_elements(const spmd_box *box)
{
    int64_t elements = 1;
    for (int32_t d = 0; d < box->dims; d++)
        elements *= box->extent[d] > 0 ? box->extent[d] : 0;
    return elements;
}

void spmd_box_copy(char *into_memory, const spmd_box *into, const char *from_memory,
                   const spmd_box *from, int64_t size)
{
    assert(into->dims == from->dims && "both boxes of a transfer have the same dims");
    spmd_array_copy(into_memory + into->offset, into->stride, from_memory + from->offset,
                    from->stride, into->extent, into->dims, size, 0);
}

/* Pieces of a region of two dims. What lies otherwise is copied first: a part of it, which stays in
 * the first-level cache. */
static void region_take(const spmd_rank *rank, const spmd_exchange *exchange, const spmd_tile *all)
{
    _Alignas(64) char room[TAKE_BYTES];
    int64_t size = all->size, step = TAKE_BYTES / (TILE_ROWS * size);
    spmd_piece piece = {all->from, all->from_row, all->into - rank->memory, all->into_stride,
                        all->rows, all->columns};

    assert(step > 0 && "a row of a piece has room");
    if (all->from_stride == size) {
        exchange->take(rank, &piece);
        return;
    }
    for (int64_t row = 0; row < all->rows; row += TILE_ROWS)
        for (int64_t column = 0; column < all->columns; column += step) {
            spmd_tile t = *all;
            t.into = room;
            t.into_stride = step * size;
            t.from += row * t.from_row + column * t.from_stride;
            t.rows = spmd_least(all->rows - row, TILE_ROWS);
            t.columns = spmd_least(all->columns - column, step);
            turned_copy(&t);
            piece = (spmd_piece){room, t.into_stride,
                                 all->into - rank->memory + row * all->into_stride +
                                     column * exchange->into_size,
                                 all->into_stride, t.rows, t.columns};
            exchange->take(rank, &piece);
        }
}

/* What I pull comes to where it belongs: as a copy, or as the exchange says. */
void spmd_box_take(const spmd_rank *rank, const spmd_exchange *exchange, const spmd_box *into,
                   const char *from_memory, const spmd_box *from)
{
    int64_t size = exchange->size, at[SPMD_DIMS] = {0};
    char *to = rank->memory + into->offset;
    const char *part = from_memory + from->offset;
    spmd_region region;

    if (!exchange->take) {
        spmd_box_copy(rank->memory, into, from_memory, from, size);
        return;
    }
    if (!region_merge(&region, into->extent, into->stride, exchange->into_size, from->stride, size,
                      into->dims))
        return;
    region_turn(&region);
    if (region.dims == 0 || region.into[region.dims - 1] != region.into_size)
        region_deepen(&region);
    int64_t inner = region.dims - 1, outer = inner > 0 ? inner - 1 : 0;
    spmd_tile all = {NULL, NULL, size, size, region.from[inner], 1, region.extent[inner], size};
    if (inner > 0) {
        all.into_stride = region.into[outer];
        all.from_row = region.from[outer];
        all.rows = region.extent[outer];
    }
    do {
        all.into = to;
        all.from = part;
        region_take(rank, exchange, &all);
    } while (region_next(&region, outer, at, &to, &part));
}

/* Strides of a row-major array of these extents. */
static void packed_strides(int64_t *stride, const spmd_box *box, int64_t size)
{
    int64_t next = size;
    for (int32_t d = box->dims - 1; d >= 0; d--) {
        stride[d] = next;
        next *= box->extent[d];
    }
}

/* A box of the same extents that lies packed, from offset 0 on. */
void spmd_box_packed(spmd_box *packed, const spmd_box *box, int64_t size)
{
    spmd_box from = *box;
    *packed = from;
    packed->offset = 0;
    packed_strides(packed->stride, &from, size);
}

bool spmd_box_contiguous(const spmd_box *box, int64_t size)
{
    int64_t packed[SPMD_DIMS];
    packed_strides(packed, box, size);
    for (int32_t d = 0; d < box->dims; d++)
        if (box->extent[d] > 1 && box->stride[d] != packed[d])
            return false;
    return true;
}

void spmd_box_pack(char *into, const char *memory, const spmd_box *from, int64_t size)
{
    int64_t packed[SPMD_DIMS];
    packed_strides(packed, from, size);
    spmd_array_copy(into, packed, memory + from->offset, from->stride, from->extent, from->dims,
                    size, 0);
}

void spmd_box_unpack(char *memory, const spmd_box *into, const char *from, int64_t size)
{
    int64_t packed[SPMD_DIMS];
    packed_strides(packed, into, size);
    spmd_array_copy(memory + into->offset, into->stride, from, packed, into->extent, into->dims,
                    size, 0);
}

void spmd_box_zero(char *memory, const spmd_box *box, int64_t size)
{
    static const char zeros[256];
    spmd_region region;
    int64_t at[SPMD_DIMS] = {0};
    char *into = memory + box->offset;

    if (!region_merge(&region, box->extent, box->stride, size, box->stride, size, box->dims))
        return;
    if (region.dims == 0) {
        memset(into, 0, (size_t)size);
        return;
    }
    int64_t inner = region.dims - 1;
    do
        if (region.into[inner] == size)
            memset(into, 0, (size_t)(region.extent[inner] * size));
        else if (size <= (int64_t)sizeof zeros)
            row_copy(into, region.into[inner], zeros, 0, region.extent[inner], size, 0);
        else
            for (int64_t k = 0; k < region.extent[inner]; k++)
                memset(into + k * region.into[inner], 0, (size_t)size);
    while (region_next(&region, inner, at, &into, NULL));
}

/* into = first combined with second; into may be one of them. */
void spmd_fold_two(spmd_fold fold, void *into, const void *first, const void *second, int64_t n)
{
    const spmd_term term[] = {{.from = first}, {.from = second, .into = into}};
    fold(term, 2, n);
}

/* Folds the terms into a box, row by row. All have the strides of `from`, and begin where their
 * term says; a first `from` of NULL stands for what lies in the box. */
void spmd_box_fold(char *into_memory, const spmd_box *into, const spmd_box *from, int64_t size,
                   spmd_fold fold, spmd_term *term, int64_t terms)
{
    spmd_region region;
    int64_t at[SPMD_DIMS] = {0};
    char *to = into_memory + into->offset;
    const char *part = term[terms - 1].from;
    bool onto = !term[0].from, more = true;

    if (!region_merge(&region, into->extent, into->stride, size, from->stride, size, into->dims))
        return;
    if (region.dims == 0 || region.into[region.dims - 1] != size ||
        region.from[region.dims - 1] != size)
        region_deepen(&region);
    int64_t inner = region.dims - 1;
    while (more) {
        const char *before = part;
        if (onto)
            term[0].from = to;
        term[terms - 1].into = to;
        fold(term, terms, region.extent[inner]);
        more = region_next(&region, inner, at, &to, &part);
        for (int64_t k = onto; k < terms; k++)
            term[k].from = (const char *)term[k].from + (part - before);
    }
}
