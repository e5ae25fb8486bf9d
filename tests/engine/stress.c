/* The engine under delays (delays.h): one random job after the other until the time is over. A job
 * is a program of images.c or mixed.c on 1 to 9 ranks in 1 to 3 processes of 1 to 4 threads, run
 * three times; every rank checks what it gets, and a run in which no rank gets further is a hang.
 * Arguments: seconds, seed, how long nothing may move, a defect of delays.h to be found.
 * Exit code 0: nothing found. The last line says how much was tried, or what was found. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "delays.h"
#include "images.h"
#include "parts.h"

static const struct {
    const char *name;
    const spmd_image *image;
} program[] = {EXCHANGING(ROW)};
enum { PROGRAMS = sizeof program / sizeof *program, RUNS = 3, WORST_PROCESSES = 3, WAIT_MS = 20 };
enum { RIGHT = 0, WRONG = 1, HANGS = 2, FAILED = 3 };

typedef struct setup {
    int program;
    int64_t size[SPMD_AXES], scalar[3]; /* elements, steps, seed */
    int64_t ranks, processes, threads, cores, algorithm, strict;
    uint64_t rate;
} setup;

static uint64_t state;
static _Atomic int64_t *loaded; /* processes of the job under way; all of them see it */

static int64_t below(int64_t n)
{
    uint64_t mixed = state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return (int64_t)((mixed ^ mixed >> 31) % (uint64_t)n);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static setup setup_draw(void)
{
    static const int64_t shape[][SPMD_AXES] = {
        {1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {2, 2, 1}, {5, 1, 1}, {2, 3, 1},
        {1, 7, 1}, {2, 2, 2}, {1, 4, 2}, {3, 3, 1}, {9, 1, 1},
    };
    static const int64_t length[] = {1, 2, 3, 24, 130, 700, 9001};
    static const uint64_t rate[] = {0, 15, 60, 400};
    setup drawn = {.program = below(2) ? 0 : (int)below(PROGRAMS)};
    const int64_t *size = shape[below(sizeof shape / sizeof *shape)];
    int64_t elements = length[below(sizeof length / sizeof *length)];
    int64_t worst = drawn.program == 0 ? 200 : 60;

    for (int axis = 0; axis < SPMD_AXES; axis++)
        drawn.size[axis] = size[axis];
    drawn.ranks = size[0] * size[1] * size[2];
    drawn.processes = least(1 + below(WORST_PROCESSES), drawn.ranks);
    drawn.threads = 1 + below(4);
    drawn.cores = 1 + below(8); /* fewer than threads, or one for each */
    drawn.algorithm = below(4);
    drawn.strict = below(8) == 0;
    drawn.rate = rate[below(sizeof rate / sizeof *rate)];
    drawn.scalar[0] = elements > 130 && drawn.program == PROGRAMS - 1 ? 130 : elements;
    drawn.scalar[1] = elements > 130 ? worst / 5 : worst;
    drawn.scalar[2] = 1 + below(1000);
    return drawn;
}

static void setup_print(const setup *drawn, uint64_t seed)
{
    printf("%s on %lldx%lldx%lld ranks, %lld processes of %lld threads, %lld cores, "
           "%lld elements, algorithm %lld, strict %lld, one delay in %llu, seed %llu\n",
           program[drawn->program].name, (long long)drawn->size[0], (long long)drawn->size[1],
           (long long)drawn->size[2], (long long)drawn->processes, (long long)drawn->threads,
           (long long)drawn->cores, (long long)drawn->scalar[0], (long long)drawn->algorithm,
           (long long)drawn->strict,
           (unsigned long long)drawn->rate, (unsigned long long)seed);
}

static spmd_job *job_make(const setup *drawn, int64_t process)
{
    int64_t first = process * drawn->ranks / drawn->processes;
    spmd_settings settings = {
        .image = program[drawn->program].image, .ranks = drawn->ranks, .size = drawn->size,
        .scalar = drawn->scalar, .scalars = 3, .first = first,
        .count = (process + 1) * drawn->ranks / drawn->processes - first,
        .threads = drawn->threads, .cores = drawn->cores, .algorithm = drawn->algorithm,
        .strict = drawn->strict,
    };
    spmd_job *job;
    return spmd_job_new(&settings, &job) == SPMD_OK ? job : NULL;
}

/* A process of the job, this one or another, is stopped by a signal. Whoever waits for it is right. */
static bool is_stopped(const spmd_job *job, int64_t ranks)
{
    spmd_rank_state seen;
    for (int64_t k = 0; k < ranks; k++)
        if (spmd_job_watch(job, k, &seen) == SPMD_OK && spmd_process_is_stopped(seen.process))
            return true;
    return false;
}

/* Exchanges that all ranks of the job have completed in this run; also those of other processes. */
static int64_t progress(const spmd_job *job, int64_t ranks)
{
    int64_t total = 0;
    for (int64_t k = 0; k < ranks; k++) {
        spmd_rank_state seen;
        if (spmd_job_watch(job, k, &seen) == SPMD_OK)
            total += seen.superstep + seen.done + 1000000 * seen.runs;
    }
    return total;
}

static void where_print(const spmd_job *job, int64_t ranks)
{
    for (int64_t k = 0; k < ranks; k++) {
        spmd_rank_state seen;
        if (spmd_job_watch(job, k, &seen) == SPMD_OK)
            printf("  rank %lld: run %lld, exchange %lld, site %lld%s\n", (long long)k,
                   (long long)seen.runs, (long long)seen.superstep, (long long)seen.site,
                   seen.done ? ", done" : "");
    }
}

static int64_t errors_sum(spmd_job *job, int64_t ranks)
{
    int64_t error[64] = {0}, stride = sizeof *error, total = 0;
    spmd_global global = {.base = (char *)error, .dims = 1, .shape = &ranks, .stride = &stride,
                          .size = sizeof *error};
    if (spmd_job_gather(job, 0, SPMD_EVERY_RANK, &global) != SPMD_OK)
        return 1;
    for (int64_t k = 0; k < ranks; k++)
        total += error[k];
    return total;
}

static int run_once(spmd_job *job, int64_t ranks, int64_t limit_ms)
{
    int64_t seen = -1, still_ms = 0;
    spmd_failure failure;
    int ends;

    if (spmd_job_start(job, NULL) != SPMD_OK)
        return FAILED;
    while ((ends = spmd_job_wait(job, WAIT_MS)) == SPMD_RUNNING) {
        int64_t sum = progress(job, ranks);
        bool still = sum == seen && !is_stopped(job, ranks);
        still_ms = still ? still_ms + WAIT_MS : 0;
        seen = sum;
        if (still_ms >= limit_ms) {
            where_print(job, ranks);
            return HANGS;
        }
    }
    if (ends == SPMD_FINISHED)
        return errors_sum(job, ranks) ? WRONG : RIGHT;
    printf("  %s\n", spmd_job_failure(job, &failure) ? failure.text : "?");
    return FAILED;
}

/* One process of a job. Ends only by _exit: what a hanging job holds is never freed. */
static void process_main(const setup *drawn, spmd_arena *arena, int64_t process, int64_t limit_ms,
                         enum delays_defect defect)
{
    int result = FAILED;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    delays_set((uint64_t)drawn->scalar[2] * 31 + (uint64_t)process, drawn->rate, defect);
    spmd_job *job = job_make(drawn, process);
    if (job && spmd_job_load(job, arena) == SPMD_OK) {
        result = RIGHT;
        atomic_fetch_add(loaded, 1);
        while (atomic_load(loaded) < drawn->processes)
            sched_yield(); /* as the host language meets before a run */
        for (int run = 0; run < RUNS && result == RIGHT; run++)
            result = run_once(job, drawn->ranks, limit_ms);
        if (result == RIGHT && spmd_job_free(job) != SPMD_OK)
            result = FAILED;
    }
    fflush(stdout);
    _exit(result);
}

/* The first result that is not RIGHT ends the job. */
static int job_run(const setup *drawn, int64_t limit_ms, enum delays_defect defect)
{
    spmd_arena *arena;
    spmd_job *whole = job_make(drawn, 0);
    pid_t child[WORST_PROCESSES];
    int result = RIGHT;

    if (!whole || spmd_arena_new(spmd_job_bytes(whole), 1, &arena) != SPMD_OK)
        return FAILED;
    spmd_job_free(whole);
    atomic_store(loaded, 0);
    fflush(stdout);
    for (int64_t k = 0; k < drawn->processes; k++)
        if ((child[k] = fork()) == 0)
            process_main(drawn, arena, k, limit_ms, defect);
    for (int64_t left = drawn->processes; left > 0; left--) {
        int status;
        pid_t ended = wait(&status);
        int found = WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
        for (int64_t k = 0; k < drawn->processes; k++) {
            if (child[k] == ended)
                child[k] = 0;
            else if (child[k] > 0 && found != RIGHT && result == RIGHT)
                kill(child[k], SIGKILL);
        }
        result = result == RIGHT ? found : result;
    }
    spmd_arena_free(arena);
    return result;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int count, char **argument)
{
    static const char *const found[] = {"right", "wrong values", "a hang", "a failure"};
    double end = now() + (count > 1 ? atof(argument[1]) : 5);
    uint64_t seed = count > 2 ? strtoull(argument[2], NULL, 10) : 1;
    int64_t limit_ms = (int64_t)(1000 * (count > 3 ? atof(argument[3]) : 20)), jobs = 0;
    int defect = count > 4 ? atoi(argument[4]) : DELAYS_NO_DEFECT;

    loaded = mmap(NULL, sizeof *loaded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (; loaded != MAP_FAILED && now() < end; seed++, jobs++) {
        state = seed * 0x9e3779b97f4a7c15u;
        setup drawn = setup_draw();
        int result = job_run(&drawn, limit_ms, (enum delays_defect)defect);
        if (result == RIGHT)
            continue;
        setup_print(&drawn, seed);
        printf("found %s after %lld jobs\n", found[result], (long long)jobs);
        return 1;
    }
    printf("nothing found in %lld jobs\n", (long long)jobs);
    return 0;
}
