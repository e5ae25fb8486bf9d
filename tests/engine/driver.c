/* The engine without Python: every checking image, at several numbers of ranks and threads, run
 * twice, with and without random delays. Compiled together with the engine under the sanitizers.
 * Exit code 0: no rank saw a wrong value. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "here.h"
#include "images.h"
#include "led.h"
#include "supply.h"

#define PROGRAMS(use)                                                                              \
    use(ring) use(edge) use(route) use(reduce) use(axes) use(gather) use(swap) use(scatter)        \
        use(scan) use(near) use(halo) use(print) use(mixed)

DECLARE(print)
DECLARE(stuck)
DECLARE(collide)
DECLARE(kept)
DECLARE(fed)
DECLARE(data)

static const struct {
    const char *name;
    const spmd_image *image;
} program[] = {PROGRAMS(ROW)};

static const struct {
    int64_t size[SPMD_AXES], threads;
} shape[] = {{{1, 1, 1}, 1}, {{4, 1, 1}, 1}, {{2, 2, 1}, 2}, {{7, 1, 1}, 3}, {{4, 4, 2}, 4}};

static int must(int status, const char *doing)
{
    if (status == SPMD_OK)
        return status;
    fprintf(stderr, "%s: %s\n", doing, spmd_status_text(status));
    exit(1);
}

/* What was kept last: arrays 1 and 2 of kept.c, whole. */
enum { KEPT_ROWS = 11, KEPT_COLUMNS = 3, KEPT_TURNS = 20 };
static struct {
    spmd_set set;
    int64_t ranks, sets, matrix[KEPT_ROWS][KEPT_COLUMNS];
    uint8_t bytes[KEPT_ROWS];
    uint64_t sum;
} kept;

static void set_take(spmd_job *job)
{
    if (!spmd_job_set(job, &kept.set))
        return;
    for (int64_t rank = 0; rank < kept.ranks; rank++)
        for (int64_t array = 1; array <= 2; array++) {
            int64_t offset[SPMD_DIMS], extent[SPMD_DIMS], bytes;
            void *from, *into = array == 1 ? (void *)kept.matrix : kept.bytes;
            must(spmd_job_room(job, array, rank, offset, extent, &from, &bytes), "room");
            if (bytes)
                memcpy((char *)into + offset[0] * (bytes / extent[0]), from, (size_t)bytes);
        }
    kept.sets++;
    spmd_job_release(job);
}

/* The state that the run ends in. */
static int run_once(spmd_job *job, int64_t *lines)
{
    char text[4096];
    int state;
    must(spmd_job_start(job, NULL), "start");
    do {
        state = spmd_job_wait(job, 1000);
        set_take(job);
        for (int64_t bytes; (bytes = spmd_job_text(job, text, sizeof text)) > 0;)
            for (int64_t k = 0; k < bytes; k++)
                *lines += text[k] == '\n';
    } while (state == SPMD_RUNNING);
    return state;
}

static int64_t errors_sum(spmd_job *job, int64_t ranks)
{
    int64_t *error = calloc((size_t)ranks, sizeof *error), stride = sizeof *error, total = 0;
    spmd_global global = {.base = (char *)error, .dims = 1, .shape = &ranks, .stride = &stride,
                          .size = sizeof *error};
    must(spmd_job_gather(job, 0, SPMD_EVERY_RANK, &global), "gather");
    for (int64_t k = 0; k < ranks; k++)
        total += error[k];
    free(error);
    return total;
}

static spmd_job *job_make(const spmd_image *image, int which, const int64_t *scalar,
                          int64_t algorithm, spmd_arena **arena)
{
    const int64_t *size = shape[which].size;
    spmd_settings settings = {
        .image = image, .ranks = size[0] * size[1] * size[2], .size = size, .scalar = scalar,
        .scalars = 3, .count = size[0] * size[1] * size[2], .threads = shape[which].threads,
        .algorithm = algorithm,
    };
    spmd_job *job;
    must(spmd_job_new(&settings, &job), "new");
    must(spmd_arena_new(spmd_job_bytes(job), 1, arena), "arena");
    must(spmd_job_load(job, *arena), "load");
    return job;
}

static int64_t check(int which_program, int which_shape, int64_t elements, int64_t seed,
                     int64_t algorithm)
{
    const int64_t scalar[] = {elements, 9, seed};
    const int64_t *size = shape[which_shape].size;
    int64_t ranks = size[0] * size[1] * size[2], wrong = 0;
    spmd_arena *arena;
    spmd_job *job = job_make(program[which_program].image, which_shape, scalar, algorithm, &arena);

    for (int run = 0; run < 2; run++) {
        int64_t lines = 0;
        wrong += run_once(job, &lines) != SPMD_FINISHED;
        wrong += errors_sum(job, ranks);
        if (strcmp(program[which_program].name, "print") == 0)
            wrong += lines != 9 * ranks;
    }
    must(spmd_job_free(job), "free");
    spmd_arena_free(arena);
    if (wrong)
        fprintf(stderr, "%s: %lld ranks, %lld elements, algorithm %lld: %lld wrong\n",
                program[which_program].name, (long long)ranks, (long long)elements,
                (long long)algorithm, (long long)wrong);
    return wrong;
}

/* What must be refused in the middle of a run is, on all threads. */
static int64_t check_failure(const spmd_image *image, const char *part)
{
    const int64_t scalar[] = {8, 3, 0};
    spmd_arena *arena;
    spmd_failure failure;
    int64_t lines = 0;
    spmd_job *job = job_make(image, 3, scalar, SPMD_AUTO, &arena);
    int64_t wrong = run_once(job, &lines) != SPMD_ABORTED;

    wrong += !spmd_job_failure(job, &failure) || !strstr(failure.text, part);
    must(spmd_job_free(job), "free");
    spmd_arena_free(arena);
    if (wrong)
        fprintf(stderr, "expected a failure with \"%s\"\n", part);
    return wrong;
}

/* The check sum of array 2 of kept.c, of the ranks that have each element once. */
static uint64_t bytes_sum(spmd_job *job, const int64_t *size)
{
    uint64_t sum = 0, share;
    for (int64_t k = 0; k < size[1]; k++) {
        must(spmd_job_sum(job, 2, k * size[2], &share), "sum");
        sum += share;
    }
    return sum;
}

/* A run of kept.c that keeps every so many turns, or nanoseconds, and goes on from what is kept, if
 * that is to be. */
static int64_t check_kept(int which_shape, int64_t every, int64_t nanoseconds, bool goes_on)
{
    const int64_t scalar[] = {KEPT_ROWS, KEPT_TURNS, nanoseconds ? 0 : 7};
    const int64_t *size = shape[which_shape].size;
    int64_t lines = 0, wrong = 0, none[SPMD_DIMS] = {0}, held, copied;
    int64_t whole[SPMD_DIMS] = {KEPT_ROWS, KEPT_COLUMNS};
    spmd_arena *arena;
    spmd_job *job = job_make(&kept_image, which_shape, scalar, SPMD_AUTO, &arena);

    kept.ranks = size[0] * size[1] * size[2];
    kept.sets = 0;
    must(spmd_job_keep(job, every, nanoseconds), "keep");
    if (goes_on) {
        must(spmd_job_resume(job, &kept.set), "resume");
        for (int64_t rank = 0; rank < kept.ranks; rank++) {
            must(spmd_job_refill(job, 1, rank, none, whole, kept.matrix), "refill");
            must(spmd_job_refill(job, 2, rank, none, whole, kept.bytes), "refill");
        }
    }
    wrong += run_once(job, &lines) != SPMD_FINISHED;
    wrong += errors_sum(job, kept.ranks);
    wrong += spmd_job_resumed(job) != goes_on;
    wrong += every && !goes_on && kept.sets != (KEPT_TURNS - 1) / every;
    wrong += nanoseconds && kept.sets == 0;
    if (!kept.sum)
        kept.sum = bytes_sum(job, size);
    wrong += kept.sum != bytes_sum(job, size); /* on all meshes */
    spmd_job_held(job, &held, &copied);
    wrong += held < copied;
    must(spmd_job_free(job), "free");
    spmd_arena_free(arena);
    if (wrong)
        fprintf(stderr, "kept: %lld ranks, every %lld or %lld ns: %lld wrong\n",
                (long long)kept.ranks, (long long)every, (long long)nanoseconds, (long long)wrong);
    return wrong;
}

static int64_t fed_run(spmd_job *job)
{
    int64_t lines = 0;
    return run_once(job, &lines) != SPMD_FINISHED;
}

/* A run of fed.c with these flags. */
static int64_t check_fed(int which_shape, int64_t flags)
{
    const int64_t *size = shape[which_shape].size, scalar[] = {11, 40, flags};
    spmd_arena *arena;
    spmd_job *job = job_make(&fed_image, which_shape, scalar, SPMD_AUTO, &arena);
    int64_t wrong = supply_check(job, flags, fed_run);
    wrong += errors_sum(job, size[0] * size[1] * size[2]);
    must(spmd_job_free(job), "free");
    spmd_arena_free(arena);
    if (wrong)
        fprintf(stderr, "fed: shape %d, flags %lld: %lld wrong\n", which_shape, (long long)flags,
                (long long)wrong);
    return wrong;
}

/* All algorithms of reductions; the other programs do not depend on it. */
static int64_t check_all(int which_program, int which_shape, int64_t elements, int64_t seed)
{
    const char *name = program[which_program].name;
    bool reduces = strcmp(name, "reduce") == 0 || strcmp(name, "axes") == 0 ||
                   strcmp(name, "scan") == 0 || strcmp(name, "mixed") == 0;
    int64_t last = reduces ? SPMD_RING : SPMD_AUTO, wrong = 0;
    for (int64_t algorithm = SPMD_AUTO; algorithm <= last; algorithm++)
        wrong += check(which_program, which_shape, elements, seed, algorithm);
    return wrong;
}

int main(void)
{
    static const int64_t elements[] = {1, 5, 130};
    int64_t wrong = 0;
    int mixed = 0;

    while (strcmp(program[mixed].name, "mixed") != 0)
        mixed++;
    for (int k = 0; k < (int)(sizeof program / sizeof *program); k++)
        for (int s = 0; s < (int)(sizeof shape / sizeof *shape); s++)
            for (int e = 0; e < 3; e++)
                wrong += check_all(k, s, elements[e], e ? 77 : 0);
    for (int s = 0; s < 4; s++) /* several chunks to each block */
        wrong += check_all(3, s, 9001, 0);
    for (int seed = 1; seed < 9; seed++) /* in slots, in place, given, in blocks */
        wrong += check_all(mixed, seed % 4, seed % 2 ? 700 : 9001, seed);
    for (int s = 0; s < (int)(sizeof shape / sizeof *shape); s++) {
        int other = (s + 2) % (int)(sizeof shape / sizeof *shape);
        wrong += check_kept(s, 1, 0, false);
        wrong += check_kept(s, 0, 1, false);
        wrong += check_kept(s, 7, 0, false);
        wrong += check_kept(other, 0, 0, true);
        wrong += check_kept(s, 2, 0, true);
        for (int64_t flags = 0; flags < 3; flags++) {
            wrong += check_fed(s, flags); /* values back, or a batch before the loop */
            wrong += check_fed(s, flags | 16); /* a ring for each block of rows */
        }
        wrong += check_fed(s, 4);
    }
    wrong += check_led(&data_image);
    wrong += check_here(&data_image);
    wrong += check_failure(&stuck_image, "no rank can advance");
    wrong += check_failure(&collide_image, "both send to rank 0");
    printf("%lld wrong\n", (long long)wrong);
    return wrong != 0;
}
