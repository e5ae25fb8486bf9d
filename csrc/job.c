/* A job: the tables of an image for given sizes and scalars, where everything lies in the arena,
 * the records of the hosted ranks, and the one failure that ends all of it. */
#define _GNU_SOURCE
#include "parts.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define UNEXPECTED 65 /* the exit code where a program finds what it does not expect */
/* `doctor --calibrate` compares SLOT_BYTES and SHARE_BYTES with other values. */
#define SLOT_BYTES 4096     /* at most */
#define SLOTS_BYTES 262144  /* of all sites of a rank, about, */
#define SLOT_RANKS 64       /* with up to so many ranks */
#define SHARE_BYTES 65536   /* of a broadcast: it is worth two meetings */
#define SPARSE_FROM 65536   /* bytes: smaller buffers are not worth a page fault */
#define MOST_BYTES ((int64_t)1 << 56) /* beyond any machine; sums of two cannot overflow */

const char *spmd_status_text(int status)
{
    static const char *const text[] = {
        [SPMD_OK] = "done",
        [SPMD_NO_MEMORY] = "the machine has not enough memory",
        [SPMD_SYSTEM] = "a system call failed",
        [SPMD_MISMATCH] = "not the interface version or the memory that was agreed on",
        [SPMD_RANGE] = "an argument is out of its range",
        [SPMD_BUSY] = "the job is running",
        [SPMD_CUT] = "a mapped file has become shorter",
    };
    bool known = status >= 0 && status < (int)(sizeof text / sizeof *text);
    return known ? text[status] : "unknown status";
}

static int settings_check(const spmd_settings *settings)
{
    const spmd_image *image = settings->image;
    int64_t product = 1;

    if (!image)
        return SPMD_RANGE;
    if (image->interface_version != SPMD_INTERFACE)
        return SPMD_MISMATCH;
    for (int axis = 0; axis < SPMD_AXES; axis++) {
        if (settings->size[axis] < 1 || settings->size[axis] > settings->ranks / product)
            return SPMD_RANGE;
        product *= settings->size[axis];
    }
    bool fits = product == settings->ranks && settings->scalars == image->scalars &&
                settings->first >= 0 && settings->count >= 1 &&
                settings->count <= settings->ranks - settings->first && settings->threads >= 0 &&
                settings->cores >= 0 && settings->strangers >= 0 &&
                settings->algorithm >= SPMD_AUTO &&
                settings->algorithm <= SPMD_RING && settings->libraries >= 0;
    for (int k = 0; fits && k < SPMD_CLASSES; k++) {
        const spmd_limits *limits = &settings->limits[k];
        fits = limits->slot >= 0 && limits->fold >= 0 && limits->share >= 0 && limits->ring >= 0;
    }
    for (uint32_t array = 0; fits && array < image->inputs + image->outputs; array++)
        fits = image->array_dims[array] <= SPMD_DIMS &&
               image->array_buffer[array] < image->buffers;
    return fits ? SPMD_OK : SPMD_RANGE;
}

/* Places those buffers of one overlay (0: of none) from `end` on, each on a line, that are sparse,
 * or those that are not; where they end, -1 where that is beyond any machine. */
static int64_t buffers_line_up(const spmd_image *image, uint32_t overlay, bool sparse,
                               const int64_t *bytes, int64_t *buffer, int64_t end)
{
    for (uint32_t k = 0; end >= 0 && k < image->buffers; k++) {
        uint32_t own = image->buffer_overlay ? image->buffer_overlay[k] : 0;
        bool is_sparse = image->buffer_sparse && image->buffer_sparse[k] && bytes[k] >= SPARSE_FROM;
        if (own != overlay || is_sparse != sparse)
            continue;
        if (bytes[k] < 0 || bytes[k] >= MOST_BYTES || end >= MOST_BYTES)
            return -1;
        buffer[k] = end; /* one that is empty has a place too: buffers are known by their places */
        end += spmd_round_up(bytes[k] ? bytes[k] : 1, SPMD_LINE);
    }
    return end;
}

/* Large memories begin a few lines off a page: ranks that read the same offset of all others would
 * otherwise meet in one set of the first-level cache. */
int spmd_buffers_place(spmd_job *job, int64_t *buffer)
{
    const spmd_image *image = job->image;
    int64_t *bytes = calloc((size_t)image->buffers + 1, sizeof *bytes);
    int64_t *ends = calloc((size_t)image->overlays + 1, sizeof *ends); /* of each overlay */

    if (!bytes || !ends) {
        free(bytes);
        free(ends);
        return SPMD_NO_MEMORY;
    }
    image->reserve(&job->world, bytes);
    bool fits = true;
    int64_t end = 0;
    for (uint32_t k = 0; fits && k <= image->overlays; k++) {
        int64_t begin = k ? ends[image->overlay_around[k - 1]] : 0;
        int64_t dense = buffers_line_up(image, k, false, bytes, buffer, begin);
        ends[k] = buffers_line_up(image, k, true, bytes, buffer, dense);
        fits = ends[k] >= 0;
        end = ends[k] > end ? ends[k] : end;
        job->dense[k] = (spmd_range){begin, dense};
    }
    free(bytes);
    free(ends);
    if (end >= SPMD_PAGE)
        end = spmd_round_up(end, SPMD_PAGE) + 5 * SPMD_LINE;
    job->rank_bytes = end;
    return fits && end <= MOST_BYTES / job->world.ranks ? SPMD_OK : SPMD_NO_MEMORY;
}

/* What slots of an exchange site hold, beside their heads: with many sites or ranks less, so that
 * they do not take more memory than what is exchanged. */
static int64_t slot_bytes(int64_t ranks, int64_t sites)
{
    int64_t bytes = SLOT_BYTES, all = ranks > SLOT_RANKS ? SLOTS_BYTES * SLOT_RANKS / ranks
                                                         : SLOTS_BYTES;
    while (bytes > SPMD_LINE && 2 * sites * bytes > all)
        bytes /= 2;
    return bytes + SPMD_LINE - (int64_t)offsetof(spmd_slot, bytes);
}

static void limits_fill(spmd_limits *limits, int64_t capacity)
{
    if (limits->slot == 0 || limits->slot > capacity)
        limits->slot = capacity;
    if (limits->fold == 0)
        limits->fold = capacity;
    if (limits->share == 0)
        limits->share = SHARE_BYTES;
}

void spmd_limits_fill(spmd_limits *limits, int64_t ranks)
{
    limits_fill(limits, slot_bytes(ranks, 1));
}

static int arena_plan(spmd_job *job)
{
    int64_t ranks = job->highest - job->lowest + 1, sites = job->image->sites;
    job->slot_bytes = slot_bytes(ranks, sites);
    for (int k = 0; k < SPMD_CLASSES; k++)
        limits_fill(&job->limits[k], job->slot_bytes);
    job->site_bytes = (int64_t)sizeof(spmd_site);
    job->site_bytes += 2 * ((int64_t)offsetof(spmd_slot, bytes) + job->slot_bytes);
    job->record_bytes = (int64_t)sizeof(spmd_record) + sites * job->site_bytes;
    job->record_bytes = spmd_round_up(job->record_bytes, 2 * SPMD_LINE);
    if (job->record_bytes > MOST_BYTES / ranks)
        return SPMD_NO_MEMORY;
    job->records_at = spmd_round_up((int64_t)sizeof(spmd_header), SPMD_PAGE);
    job->memory_at = spmd_round_up(job->records_at + ranks * job->record_bytes, SPMD_PAGE);
    job->arena_bytes = spmd_round_up(job->memory_at + ranks * job->rank_bytes, SPMD_PAGE);
    return SPMD_OK;
}

static int64_t cores_usable(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? online : 1;
}

/* See spmd_engine. */
static uint32_t vectors(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 2;
    if (__builtin_cpu_supports("avx2"))
        return 1;
#endif
    return 0;
}

static int tables_fill(spmd_job *job, const spmd_settings *settings)
{
    const spmd_image *image = job->image;
    size_t scalars = image->scalars, buffers = image->buffers;
    size_t libraries = (size_t)settings->libraries;

    job->tables = calloc(scalars + buffers + 1, sizeof *job->tables);
    job->library = calloc(libraries + 1, sizeof *job->library);
    job->given = calloc((size_t)image->inputs + image->outputs + 1, 1);
    job->dense = calloc((size_t)image->overlays + 1, sizeof *job->dense);
    if (!job->tables || !job->library || !job->given || !job->dense)
        return SPMD_NO_MEMORY;
    if (scalars)
        memcpy(job->tables, settings->scalar, scalars * sizeof *job->tables);
    if (libraries)
        memcpy(job->library, settings->library, libraries * sizeof *job->library);
    job->world.ranks = settings->ranks;
    memcpy(job->world.size, settings->size, sizeof job->world.size);
    job->world.scalar = job->tables;
    job->world.given = job->given;
    job->world.buffer = job->tables + scalars;
    job->engine.interface_version = SPMD_INTERFACE;
    job->engine.exchange = spmd_exchange_advance;
    job->engine.print = spmd_rank_print;
    job->engine.due = spmd_rank_due;
    job->engine.fail = spmd_rank_end;
    job->engine.point = spmd_rank_point;
    job->engine.turn = spmd_rank_turn;
    job->engine.save = spmd_rank_save;
    job->engine.take = spmd_rank_take;
    job->engine.more = spmd_rank_more;
    job->engine.send = spmd_rank_send;
    job->keeping.resume = -1;
    job->engine.library = job->library;
    job->engine.vectors = vectors();
    int status = spmd_processes_take(job, settings);
    if (status == SPMD_OK)
        status = spmd_buffers_place(job, job->tables + scalars);
    return status == SPMD_OK ? arena_plan(job) : status;
}

int spmd_job_new(const spmd_settings *settings, spmd_job **made)
{
    pthread_condattr_t monotonic;
    int status = settings_check(settings);
    if (status != SPMD_OK)
        return status;
    spmd_job *job = calloc(1, sizeof *job);
    if (!job)
        return SPMD_NO_MEMORY;
    job->image = settings->image;
    job->first = settings->first;
    job->count = settings->count;
    job->cores = settings->cores ? settings->cores : cores_usable();
    job->threads = settings->threads ? settings->threads : job->cores;
    if (job->threads > job->count)
        job->threads = job->count;
    job->strangers = settings->strangers;
    job->algorithm = settings->algorithm;
    job->strict = settings->strict != 0;
    memcpy(job->limits, settings->limits, sizeof job->limits);
    pthread_mutex_init(&job->lock, NULL);
    pthread_mutex_init(&job->mpi_lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&job->go, NULL);
    pthread_cond_init(&job->news, &monotonic);
    pthread_cond_init(&job->heed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    status = tables_fill(job, settings);
    if (status != SPMD_OK) {
        spmd_job_free(job);
        return status;
    }
    *made = job;
    return SPMD_OK;
}

void spmd_job_constants(spmd_job *job, const void *constants)
{
    job->world.constants = constants;
}

/* Of ranks of this arena only: other arenas' ranks that lie between them take no memory. */
int64_t spmd_job_bytes(const spmd_job *job)
{
    return job->arena_bytes;
}

int64_t spmd_job_rank_bytes(const spmd_job *job)
{
    return job->rank_bytes + job->record_bytes + spmd_job_private_bytes(job) / job->count;
}

static int64_t rank_words(const spmd_image *image)
{
    int64_t words = (int64_t)image->at_load + image->buffers + image->counters + 1;
    return spmd_round_up(words, SPMD_LINE / 8);
}

int64_t spmd_job_private_bytes(const spmd_job *job)
{
    int64_t sites = job->image->sites, words = rank_words(job->image);
    int64_t pointers = (job->parted ? 2 : 1) * sites; /* teams and nears, by site */
    return job->count * ((int64_t)sizeof *job->hosted + 8 * (words + pointers));
}

int64_t spmd_job_threads(const spmd_job *job)
{
    return job->threads;
}

/* Processes that computed different sizes would read each other's memory in the wrong places; with
 * other limits they would wait for each other for ever. */
static int layout_agree(spmd_job *job)
{
    const spmd_limits *roomy = &job->limits[SPMD_SPACIOUS], *crowded = &job->limits[SPMD_CROWDED];
    const int64_t number[] = {job->world.ranks, job->record_bytes, job->rank_bytes,
                              job->world.size[0], job->world.size[1], job->world.size[2],
                              roomy->slot, roomy->fold, roomy->share, roomy->ring,
                              crowded->slot, crowded->fold, crowded->share, crowded->ring};
    uint64_t digest = 0xcbf29ce484222325u, none = 0;
    for (size_t k = 0; k < sizeof number / sizeof *number; k++)
        digest = (digest ^ (uint64_t)number[k]) * 0x100000001b3u;
    digest |= 1;
    bool first = atomic_compare_exchange_strong(&job->arena->header->layout, &none, digest);
    return first || none == digest ? SPMD_OK : SPMD_MISMATCH;
}

const int64_t *spmd_rank_home(const spmd_rank *rank)
{
    const spmd_hosted *hosted = rank->engine_data;
    return hosted->home ? hosted->home : rank->world->buffer;
}

void spmd_buffers_reset(spmd_rank *rank)
{
    const spmd_job *job = ((spmd_hosted *)rank->engine_data)->job;
    memcpy(rank->buffer, spmd_rank_home(rank), job->image->buffers * sizeof *rank->buffer);
}

static void rank_load(spmd_job *job, int64_t k, int64_t *words)
{
    spmd_hosted *hosted = &job->hosted[k];
    int64_t index = job->first + k, rest = index;

    hosted->job = job;
    hosted->record = spmd_job_record(job, index);
    spmd_rank *rank = &hosted->record->rank;
    rank->index = index;
    for (int axis = SPMD_AXES - 1; axis >= 0; axis--) {
        rank->coord[axis] = rest % job->world.size[axis];
        rest /= job->world.size[axis];
    }
    rank->memory = spmd_job_memory(job, index);
    rank->world = &job->world;
    rank->engine = &job->engine;
    rank->at_load = words;
    rank->buffer = words + job->image->at_load;
    rank->counter = rank->buffer + job->image->buffers;
    rank->engine_data = hosted;
    spmd_buffers_reset(rank);
    hosted->whole.arenas = 1;
    job->image->load(rank);
}

/* Takes the memory of the hosted ranks, but for sparse buffers. */
static int memory_take(spmd_job *job)
{
    const spmd_image *image = job->image;
    int status = SPMD_OK;

    if (!image->buffer_sparse)
        return spmd_pages_take(spmd_job_memory(job, job->first), job->count * job->rank_bytes);
    for (int64_t k = 0; k < job->count; k++)
        for (uint32_t at = 0; status == SPMD_OK && at <= image->overlays; at++) {
            const spmd_range *span = &job->dense[at];
            status = spmd_pages_take(spmd_job_memory(job, job->first + k) + span->begin,
                                     span->end - span->begin);
        }
    return status;
}

static int ranks_load(spmd_job *job)
{
    const spmd_image *image = job->image;
    int64_t words = rank_words(image);
    int status = spmd_pages_take((char *)spmd_job_record(job, job->first),
                                 job->count * job->record_bytes);
    if (status == SPMD_OK)
        status = memory_take(job);
    if (status != SPMD_OK)
        return status;
    job->hosted = calloc((size_t)job->count, sizeof *job->hosted);
    job->words = aligned_alloc(SPMD_LINE, (size_t)(job->count * words) * sizeof *job->words);
    if (!job->hosted || !job->words)
        return SPMD_NO_MEMORY;
    memset(job->words, 0, (size_t)(job->count * words) * sizeof *job->words);
    for (int64_t k = 0; k < job->count; k++) {
        rank_load(job, k, job->words + k * words);
        if (!job->parted)
            continue;
        job->hosted[k].teams = calloc((size_t)image->sites + 1, sizeof(spmd_team *));
        if (!job->hosted[k].teams)
            return SPMD_NO_MEMORY;
    }
    return SPMD_OK;
}

int spmd_job_load(spmd_job *job, spmd_arena *arena)
{
    if (job->arena)
        return SPMD_BUSY;
    if (arena->bytes < job->arena_bytes)
        return SPMD_RANGE;
    job->arena = arena;
    int status = layout_agree(job);
    if (status == SPMD_OK)
        status = spmd_text_open(&job->text);
    if (status == SPMD_OK)
        status = ranks_load(job);
    if (status == SPMD_OK)
        status = spmd_workers_start(job);
    for (int64_t k = 0; status == SPMD_OK && k < job->count; k++)
        atomic_store_explicit(&job->hosted[k].record->process, getpid(), memory_order_release);
    return status;
}

int spmd_job_free(spmd_job *job)
{
    if (!job)
        return SPMD_OK;
    int status = spmd_workers_stop(job);
    if (status != SPMD_OK)
        return status;
    for (int64_t k = 0; job->hosted && k < job->count; k++)
        if (!spmd_packets_done(&job->hosted[k]))
            return SPMD_BUSY;
    spmd_text_close(&job->text);
    pthread_cond_destroy(&job->go);
    pthread_cond_destroy(&job->news);
    pthread_cond_destroy(&job->heed);
    spmd_watch_free(job);
    pthread_mutex_destroy(&job->lock);
    pthread_mutex_destroy(&job->mpi_lock);
    for (int64_t k = 0; job->hosted && k < job->count; k++) {
        spmd_teams_free(&job->hosted[k], job->image->sites);
        spmd_packets_free(&job->hosted[k]);
        spmd_timeline_free(&job->hosted[k]);
        free(job->hosted[k].turns.room);
        spmd_saves_free(&job->hosted[k]);
        free(job->hosted[k].kept.bytes);
        free(job->hosted[k].kept.seen);
        free(job->hosted[k].routes);
    }
    spmd_feeds_free(job);
    free((void *)job->processes.first);
    free(job->hosted);
    free(job->words);
    free(job->homes);
    free(job->tables);
    free(job->dense);
    free(job->library);
    free(job->given);
    free(job);
    return SPMD_OK;
}

/* The first failure wins, on all processes; the others keep theirs to themselves. true: it is
 * this one. */
bool spmd_arena_abort(spmd_arena *arena, const spmd_failure *failure)
{
    uint32_t fine = SPMD_FINE;
    spmd_header *header = arena->header;
    if (!atomic_compare_exchange_strong(&header->abort, &fine, SPMD_CLAIMED))
        return false;
    header->failure = *failure;
    atomic_store_explicit(&header->abort, SPMD_SAID, memory_order_release);
    return true;
}

void spmd_rank_fail(const spmd_rank *rank, int64_t code, const char *format, ...)
{
    spmd_failure failure = {
        .code = code,
        .rank = rank->index,
        .operation = rank->operation,
        .superstep = (int64_t)rank->superstep,
        .site = rank->exchange.site,
    };
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure.text, sizeof failure.text, format, arguments);
    va_end(arguments);
    const spmd_job *job = ((spmd_hosted *)rank->engine_data)->job;
    if (spmd_arena_abort(job->arena, &failure))
        spmd_job_ring(job);
}

void spmd_rank_end(spmd_rank *rank, uint32_t operation, const char *text, int64_t length)
{
    rank->operation = operation;
    spmd_rank_fail(rank, UNEXPECTED, "%.*s", (int)length, text);
}

void spmd_job_abort(spmd_job *job, int64_t code, int64_t rank, const char *text)
{
    spmd_failure failure = {.code = code, .rank = rank, .operation = -1, .site = -1};
    spmd_rank_state state;

    if (!job->arena)
        return;
    if (spmd_job_watch(job, rank, &state) == SPMD_OK) {
        failure.operation = state.operation;
        failure.superstep = state.superstep;
        failure.site = state.site;
    }
    snprintf(failure.text, sizeof failure.text, "%s", text);
    if (spmd_arena_abort(job->arena, &failure))
        spmd_job_ring(job);
    pthread_mutex_lock(&job->lock);
    spmd_here_leave(job);
    pthread_cond_broadcast(&job->news);
    pthread_mutex_unlock(&job->lock);
}

int spmd_job_failure(const spmd_job *job, spmd_failure *failure)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    if (!job->arena || !spmd_job_aborted(job))
        return 0;
    spmd_header *header = job->arena->header;
    /* Whoever claimed the word may have been killed before it said why. */
    for (int tries = 0; tries < 100; tries++) {
        if (atomic_load_explicit(&header->abort, memory_order_acquire) == SPMD_SAID) {
            *failure = header->failure;
            return 1;
        }
        nanosleep(&moment, NULL);
    }
    *failure = (spmd_failure){.code = 75, .rank = -1, .operation = -1, .site = -1};
    snprintf(failure->text, sizeof failure->text, "a process was lost while it failed");
    return 1;
}

int spmd_job_positions(spmd_job *job, int64_t counter)
{
    if (counter < 0 || counter >= job->image->counters)
        return SPMD_RANGE;
    job->positions = counter + 1;
    return SPMD_OK;
}

/* What the program says of where a rank that is hosted here is; 0: nothing. */
__attribute__((no_sanitize("thread"))) int64_t spmd_rank_position(const spmd_job *job,
                                                                 const volatile spmd_rank *rank)
{
    const volatile int64_t *counter = rank->counter;
    return job->positions ? counter[job->positions - 1] : 0;
}

/* Reads what its rank writes without a lock: numbers for people, at most a moment old. */
__attribute__((no_sanitize("thread"))) int spmd_job_watch(const spmd_job *job, int64_t rank,
                                                         spmd_rank_state *state)
{
    if (!job->arena || rank < 0 || rank >= job->world.ranks || !spmd_rank_near(job, rank))
        return SPMD_RANGE;
    const spmd_record *record = spmd_job_record(job, rank);
    const volatile spmd_rank *seen = &record->rank;
    bool is_hosted = job->hosted && rank >= job->first && rank - job->first < job->count;
    *state = (spmd_rank_state){
        .process = atomic_load_explicit(&record->process, memory_order_acquire),
        .operation = seen->operation,
        .superstep = (int64_t)seen->superstep,
        .site = seen->stage ? (int64_t)seen->exchange.site : -1,
        .position = is_hosted ? spmd_rank_position(job, seen) : 0,
        .runs = atomic_load_explicit(&record->runs, memory_order_relaxed),
        .done = atomic_load_explicit(&record->done, memory_order_relaxed),
    };
    return SPMD_OK;
}
