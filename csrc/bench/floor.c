/* What this machine allows: the transfers of our collectives, and what they are made of, in the
 * least code that does them: ranks on threads of their own, memory that they share, and for each of
 * them a word that counts how often it has arrived. No plan, no boxes, no failures, no layouts.
 *
 * A rank arrives when what it gives may be read and what it gets may be written, and again when it
 * has read and written; who depends on it waits for its word. So many arrivals belong to a turn,
 * the same for all. Where ranks share cores they sleep, and who waits for several waits for all, at
 * a counter: one of four by the phase, since nobody can be two phases ahead of all others.
 * Which method is best is measured, not known.
 *
 * One file, longer than the others: who doubts a figure beside the floor reads all of it here. */
#define _GNU_SOURCE
#include "measure.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What these are worth `bench floor` shows. */
#define SPINS 100000       /* looks at a word; then somebody else has our core, or a peer does */
#define NAP_NS 1000        /* after which the system may put us on another one */
#define IDLE_NS 100000     /* between the looks of who has nothing to do in this kind of turn */
#define YIELDS 4           /* where ranks share cores, before they sleep */
#define COUNTERS 4
#define EAGER_BYTES 8192   /* that a rank gives away at most */
#define TINY_BYTES 24      /* what fits twice beside a word, in its line */
#define STAGGER 832        /* rooms that begin alike in their pages would fall into the same sets */
#define TRIPS 100          /* of a flag in a turn, as a clock costs as much as one */
#define LINE 16            /* elements: blocks are of whole lines */

/* One line: the word, and what is so short that it travels in the same line, twice by parity.
 * Who sleeps until it grows says so, and is rung. */
typedef struct floor_word {
    _Alignas(SPMD_LINE) _Atomic uint64_t phase;
    _Atomic uint32_t rung, sleepers;
    char room[2][TINY_BYTES];
} floor_word;

/* Ranks in a row, the first one behind the last. */
typedef struct floor_span {
    int64_t first, count;
} floor_span;

/* What a rank moves in a turn. */
typedef struct floor_plan {
    spmd_part *part;
    int64_t parts;
} floor_plan;

/* One rank, as its thread sees it. */
typedef struct floor_rank {
    const spmd_floor *floor;
    spmd_turns turns;
    floor_word *word;    /* of all ranks; then the counters, then two for the flag */
    float **from, **into, **box[2]; /* of all ranks */
    floor_span before, after; /* for whom I wait before I move data, and after */
    floor_plan plan[2];  /* both for what is given away, by parity; else the first */
    uint64_t phase;      /* what my word says */
    bool idle;           /* in turns of this kind */
    int64_t count, wrong, *nanoseconds;
} floor_rank;

/* ---- memory ---------------------------------------------------------------------------------- */

static bool has_pieces(int64_t kind)
{
    return kind == SPMD_MPI_ALLGATHER || kind == SPMD_MPI_ALLTOALL || kind == SPMD_MPI_GATHER ||
           kind == SPMD_MPI_SCATTER;
}

/* Bytes of the most that a rank gives or gets. */
static int64_t room_bytes(const spmd_floor *floor)
{
    return floor->count * (has_pieces(floor->kind) ? floor->ranks : 1) * (int64_t)sizeof(float);
}

static int64_t pages(int64_t bytes)
{
    return spmd_round_up(bytes, SPMD_PAGE);
}

static int64_t rank_bytes(const spmd_floor *floor)
{
    return 2 * (pages(room_bytes(floor)) + STAGGER) + 2 * EAGER_BYTES;
}

static int64_t words_bytes(const spmd_floor *floor)
{
    return pages((floor->ranks + COUNTERS + 2) * (int64_t)sizeof(floor_word));
}

int64_t spmd_floor_bytes(const spmd_floor *floor)
{
    return SPMD_PAGE + words_bytes(floor) + floor->ranks * rank_bytes(floor);
}

static char *rank_memory(const spmd_floor *floor, int64_t rank)
{
    char *memory = (char *)floor->arena->header + SPMD_PAGE + words_bytes(floor);
    return memory + rank * rank_bytes(floor);
}

int spmd_floor_take(const spmd_floor *floor)
{
    return spmd_pages_take(rank_memory(floor, floor->first), floor->hosted * rank_bytes(floor));
}

/* ---- arriving and waiting -------------------------------------------------------------------- */

/* As in wait.c: write, then look who sleeps; say so, then look once more, then sleep. */
static void ring(floor_word *word)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&word->sleepers, memory_order_relaxed) == 0)
        return;
    atomic_fetch_add_explicit(&word->rung, 1, memory_order_release);
    syscall(SYS_futex, &word->rung, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool has_come(const floor_word *word, uint64_t phase)
{
    return atomic_load_explicit(&word->phase, memory_order_acquire) >= phase;
}

static void word_sleep(floor_word *word, uint64_t phase)
{
    atomic_fetch_add_explicit(&word->sleepers, 1, memory_order_relaxed);
    uint32_t heard = atomic_load_explicit(&word->rung, memory_order_acquire);
    atomic_thread_fence(memory_order_seq_cst);
    if (!has_come(word, phase))
        syscall(SYS_futex, &word->rung, FUTEX_WAIT, heard, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&word->sleepers, 1, memory_order_relaxed);
}

static void word_await(const floor_rank *me, floor_word *word, uint64_t phase)
{
    bool crowded = me->floor->crowded;
    for (int64_t tries = 1; !has_come(word, phase); tries++) {
        if (me->idle)
            nanosleep(&(struct timespec){.tv_nsec = IDLE_NS}, NULL);
        else if (!crowded && tries % SPINS == 0)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        else if (crowded && tries <= YIELDS)
            sched_yield();
        else if (crowded)
            word_sleep(word, phase);
    }
}

static floor_word *phase_counter(const floor_rank *me, uint64_t phase)
{
    return &me->word[me->turns.ranks + (int64_t)(phase % COUNTERS)];
}

/* What the counter of a phase says when all have arrived at it. */
static uint64_t phase_total(const floor_rank *me, uint64_t phase)
{
    return (phase + COUNTERS - 1) / COUNTERS * (uint64_t)me->turns.ranks;
}

static void arrive(floor_rank *me)
{
    floor_word *mine = &me->word[me->turns.rank], *counter = phase_counter(me, ++me->phase);
    atomic_store_explicit(&mine->phase, me->phase, memory_order_release);
    if (!me->floor->crowded)
        return;
    ring(mine);
    uint64_t before = atomic_fetch_add_explicit(&counter->phase, 1, memory_order_acq_rel);
    if (before + 1 == phase_total(me, me->phase))
        ring(counter);
}

static void span_await(const floor_rank *me, floor_span span, uint64_t phase)
{
    if (me->floor->crowded && span.count > 1) {
        word_await(me, phase_counter(me, phase), phase_total(me, phase));
        return;
    }
    for (int64_t k = 0; k < span.count; k++)
        word_await(me, &me->word[(span.first + k) % me->turns.ranks], phase);
}

static void meet(floor_rank *me)
{
    arrive(me);
    span_await(me, (floor_span){me->turns.rank + 1, me->turns.ranks - 1}, me->phase);
}

/* ---- transfers ------------------------------------------------------------------------------- */

static void move(const floor_rank *me, const floor_plan *plan)
{
    for (int64_t k = 0; k < plan->parts; k++)
        spmd_part_move(&plan->part[k], me->floor->move);
}

/* Nothing is added on the way. */
static bool is_copy(int64_t kind)
{
    return has_pieces(kind) || kind == SPMD_MPI_BCAST || kind == SPMD_MPI_SENDRECV ||
           kind == SPMD_FLOOR_COPY;
}

/* Transfers that a rank can do for another. */
static bool can_push(int64_t kind)
{
    return kind != SPMD_MPI_BARRIER && kind != SPMD_MPI_SCATTER &&
           kind != SPMD_MPI_REDUCE_SCATTER && kind != SPMD_FLOOR_COPY && kind != SPMD_FLOOR_FLAG;
}

int spmd_floor_offers(const spmd_floor *floor)
{
    bool is_large = room_bytes(floor) > EAGER_BYTES, moves = floor->kind <= SPMD_FLOOR_COPY &&
                                                             floor->kind != SPMD_MPI_BARRIER;
    if (floor->move == SPMD_FLOOR_SYSTEM && !is_copy(floor->kind))
        return 0;
    if (floor->move == SPMD_FLOOR_STREAM &&
        !(moves && is_large && floor->count % LINE == 0 && spmd_part_streams()))
        return 0;
    if (floor->method == SPMD_FLOOR_EAGER)
        return moves && floor->kind != SPMD_FLOOR_COPY && !is_large && !floor->move;
    return floor->method == SPMD_FLOOR_PULL || can_push(floor->kind);
}

static void plan_waits(const floor_rank *me, floor_span *before, floor_span *after)
{
    int64_t n = me->turns.ranks, k = me->turns.rank;
    bool push = me->floor->method == SPMD_FLOOR_PUSH;
    floor_span all = {0, n}, none = {0, 0}, root = {0, 1};
    floor_span next = {k + 1, 1}, previous = {k + n - 1, 1};

    *before = *after = all;
    switch (me->floor->kind) {
    case SPMD_MPI_SENDRECV:
        *before = push ? next : previous;
        *after = push ? previous : next;
        break;
    case SPMD_MPI_BCAST:
    case SPMD_MPI_SCATTER:
        *before = push ? all : root;
        *after = push || k == 0 ? all : none;
        break;
    case SPMD_MPI_REDUCE:
        *before = push || k == 0 ? all : none;
        *after = push ? all : k == 0 ? none : root;
        break;
    case SPMD_MPI_GATHER:
        *before = push ? root : k == 0 ? all : none;
        *after = push ? (k == 0 ? all : none) : k == 0 ? none : root;
        break;
    case SPMD_MPI_SCAN:
    case SPMD_MPI_EXSCAN:
        *before = push ? all : (floor_span){0, k + 1};
        *after = push ? all : (floor_span){k, n - k};
        break;
    default:
        break;
    }
}

/* What I get, from where all have it: their own rooms, or those for what is given away. */
static void plan_pull(const floor_rank *me, float *const *from, floor_plan *plan)
{
    int64_t n = me->turns.ranks, rank = me->turns.rank, count = me->turns.count;
    float *const *mine = &me->into[rank];
    spmd_part sum = {mine, from, 1, n, 0, 0, count, SPMD_PART_SUM};
    spmd_part one = {mine, from, 1, 1, 0, 0, count, SPMD_PART_SUM};

    switch (me->turns.kind) {
    case SPMD_MPI_SCATTER:
        one.from_at = rank * count;
        break;
    case SPMD_MPI_SENDRECV:
        one.from = &from[(rank + n - 1) % n];
        break;
    case SPMD_MPI_REDUCE_SCATTER:
        sum.elements = count / n;
        sum.from_at = rank * sum.elements;
        break;
    case SPMD_MPI_SCAN:
        sum.froms = rank + 1;
        break;
    case SPMD_MPI_EXSCAN:
        sum.froms = rank;
        break;
    default:
        break;
    }
    switch (me->turns.kind) {
    case SPMD_MPI_BCAST:
    case SPMD_MPI_SCATTER:
    case SPMD_MPI_SENDRECV:
        plan->part[plan->parts++] = one;
        break;
    case SPMD_MPI_GATHER:
    case SPMD_MPI_ALLGATHER:
    case SPMD_MPI_ALLTOALL:
        for (int64_t k = 0; k < n && (rank == 0 || me->turns.kind != SPMD_MPI_GATHER); k++) {
            one.from = &from[(rank + k) % n];
            one.into_at = (rank + k) % n * count;
            one.from_at = me->turns.kind == SPMD_MPI_ALLTOALL ? rank * count : 0;
            plan->part[plan->parts++] = one;
        }
        break;
    case SPMD_MPI_REDUCE:
        if (rank == 0)
            plan->part[plan->parts++] = sum;
        break;
    default:
        plan->part[plan->parts++] = sum;
    }
}

/* What I give, to where it belongs; or my block of it, of all, to all whom it concerns. */
static void plan_push(const floor_rank *me, floor_plan *plan)
{
    int64_t n = me->turns.ranks, rank = me->turns.rank, count = me->turns.count;
    int64_t block = (count + n - 1) / n;
    block = (block + LINE - 1) / LINE * LINE;
    int64_t begin = rank * block < count ? rank * block : count;
    int64_t length = count - begin < block ? count - begin : block;
    spmd_part mine = {me->into, &me->from[rank], 1, 1, rank * count, 0, count, SPMD_PART_SUM};
    spmd_part cut = {me->into, me->from, n, n, begin, begin, length, SPMD_PART_SUM};

    switch (me->turns.kind) {
    case SPMD_MPI_SENDRECV:
        mine.into = &me->into[(rank + 1) % n];
        mine.into_at = 0;
        plan->part[plan->parts++] = mine;
        break;
    case SPMD_MPI_ALLGATHER:
        mine.intos = n;
        plan->part[plan->parts++] = mine;
        break;
    case SPMD_MPI_GATHER:
        plan->part[plan->parts++] = mine;
        break;
    case SPMD_MPI_ALLTOALL:
        for (int64_t k = 0; k < n; k++) {
            mine.into = &me->into[(rank + k) % n];
            mine.from_at = (rank + k) % n * count;
            plan->part[plan->parts++] = mine;
        }
        break;
    default:
        cut.froms = me->turns.kind == SPMD_MPI_BCAST ? 1 : n;
        cut.intos = me->turns.kind == SPMD_MPI_REDUCE ? 1 : n;
        cut.prefix = me->turns.kind == SPMD_MPI_SCAN     ? SPMD_PART_SCAN
                     : me->turns.kind == SPMD_MPI_EXSCAN ? SPMD_PART_EXSCAN
                                                         : SPMD_PART_SUM;
        plan->part[plan->parts++] = cut;
    }
}

/* Before the first turn: nothing of it is worth the time of one. */
static void plan_make(floor_rank *me)
{
    plan_waits(me, &me->before, &me->after);
    if (me->floor->kind == SPMD_FLOOR_COPY)
        me->plan[0].part[me->plan[0].parts++] =
            (spmd_part){&me->into[me->turns.rank], &me->from[me->turns.rank], 1, 1, 0, 0,
                        me->turns.count, SPMD_PART_SUM};
    else if (me->floor->method == SPMD_FLOOR_PUSH)
        plan_push(me, &me->plan[0]);
    else if (me->floor->method == SPMD_FLOOR_PULL)
        plan_pull(me, me->from, &me->plan[0]);
    for (int k = 0; k < 2 && me->floor->method == SPMD_FLOOR_EAGER; k++)
        plan_pull(me, me->box[k], &me->plan[k]);
}

/* Given away: whoever reads it has read what was there two phases ago, and nobody waits after. */
static void transfer_eager(floor_rank *me)
{
    int64_t parity = (me->phase + 1) & 1;
    int64_t bytes = spmd_turn_elements(&me->turns, true) * (int64_t)sizeof(float);

    span_await(me, me->after, me->phase);
    memcpy(me->box[parity][me->turns.rank], me->turns.from, (size_t)bytes);
    arrive(me);
    span_await(me, me->before, me->phase);
    move(me, &me->plan[parity]);
}

static void transfer(floor_rank *me)
{
    arrive(me);
    span_await(me, me->before, me->phase);
    move(me, &me->plan[0]);
    arrive(me);
    span_await(me, me->after, me->phase);
}

/* ---- one rank, or two ------------------------------------------------------------------------ */

static void flag_set(const floor_rank *me, floor_word *word, uint64_t phase)
{
    atomic_store_explicit(&word->phase, phase, memory_order_release);
    if (me->floor->crowded)
        ring(word);
}

/* There and back again: a word that the first rank writes and its partner sees, and one for the
 * answer. */
static void trips(floor_rank *me)
{
    floor_word *there = &me->word[me->turns.ranks + COUNTERS], *back = there + 1;
    uint64_t phase = atomic_load_explicit(&back->phase, memory_order_relaxed);
    for (int64_t k = 0; k < TRIPS; k++) {
        phase++;
        if (me->turns.rank == 0)
            flag_set(me, there, phase);
        word_await(me, me->turns.rank == 0 ? back : there, phase);
        if (me->turns.rank != 0)
            flag_set(me, back, phase);
    }
}

static bool is_idle(const spmd_floor *floor, int64_t rank)
{
    switch (floor->kind) {
    case SPMD_FLOOR_COPY:
        return rank >= floor->active;
    case SPMD_FLOOR_FLAG:
        return rank != 0 && rank != floor->partner;
    case SPMD_FLOOR_SWITCH:
        return rank != 0;
    default:
        return false;
    }
}

/* Nanoseconds; -1: this rank has no part in it. */
static int64_t turn(floor_rank *me)
{
    int64_t begin = spmd_now();
    if (me->idle)
        return -1;
    switch (me->floor->kind) {
    case SPMD_MPI_BARRIER:
        meet(me);
        return spmd_now() - begin;
    case SPMD_FLOOR_COPY:
        move(me, &me->plan[0]);
        return spmd_now() - begin;
    case SPMD_FLOOR_FLAG:
        trips(me);
        return (spmd_now() - begin) / TRIPS;
    case SPMD_FLOOR_SWITCH:
        return spmd_switch_time(me->floor->method == SPMD_FLOOR_PULL);
    default:
        if (me->floor->method == SPMD_FLOOR_EAGER)
            transfer_eager(me);
        else
            transfer(me);
        return spmd_now() - begin;
    }
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Two ranks on one core, while another one has room, would measure the system's patience. Where a
 * launcher has bound the processes there are fewer cores to choose from, and nothing to do. */
static void core_take(int64_t rank, int64_t ranks)
{
    cpu_set_t cores, mine;
    if (sched_getaffinity(0, sizeof cores, &cores) || CPU_COUNT(&cores) < ranks)
        return;
    CPU_ZERO(&mine);
    for (int core = 0, k = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &cores) && k++ == rank)
            CPU_SET(core, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
}

static void *rank_measure(void *given)
{
    floor_rank *me = given;

    core_take(me->turns.rank, me->turns.ranks);
    plan_make(me);
    for (int64_t k = 0; k < me->count; k++) {
        spmd_turn_give(&me->turns, k);
        meet(me);
        me->nanoseconds[k] = turn(me);
        meet(me);
        if (!me->idle)
            me->wrong += spmd_turn_wrong(&me->turns, k);
    }
    meet(me); /* the words of all ranks say the same now */
    return NULL;
}

static float *room(const spmd_floor *floor, int64_t rank, int64_t bytes)
{
    return (float *)(rank_memory(floor, rank) + bytes);
}

/* Where all ranks have what, as this process sees it: four tables, one behind the other. */
static void rooms_find(const spmd_floor *floor, floor_word *word, float **table)
{
    int64_t whole = pages(room_bytes(floor)) + STAGGER, n = floor->ranks;
    bool tiny = room_bytes(floor) <= TINY_BYTES;
    for (int64_t rank = 0; rank < n; rank++) {
        table[rank] = room(floor, rank, 0);
        table[n + rank] = room(floor, rank, whole);
        for (int64_t k = 0; k < 2; k++)
            table[(2 + k) * n + rank] = tiny ? (float *)word[rank].room[k]
                                             : room(floor, rank, 2 * whole + k * EAGER_BYTES);
    }
}

int64_t spmd_floor_measure(const spmd_floor *floor, int64_t count, int64_t *nanoseconds)
{
    int64_t n = floor->ranks, started = 0, wrong = 0;
    floor_word *word = (floor_word *)((char *)floor->arena->header + SPMD_PAGE);
    float **table = calloc((size_t)(4 * n), sizeof *table);
    floor_rank *rank = calloc((size_t)floor->hosted, sizeof *rank);
    pthread_t *thread = calloc((size_t)floor->hosted, sizeof *thread);
    spmd_part *part = calloc((size_t)(2 * n * floor->hosted), sizeof *part);

    if (!table || !rank || !thread || !part) {
        wrong = -1;
        goto cleanup;
    }
    rooms_find(floor, word, table);
    for (int64_t k = 0; k < floor->hosted; k++) {
        int64_t r = floor->first + k;
        rank[k] = (floor_rank){
            .floor = floor,
            .turns = {floor->kind, r, n, floor->count, table[r], table[n + r]},
            .word = word,
            .from = table,
            .into = table + n,
            .box = {table + 2 * n, table + 3 * n},
            .plan = {{part + 2 * k * n, 0}, {part + (2 * k + 1) * n, 0}},
            .phase = atomic_load_explicit(&word[r].phase, memory_order_relaxed),
            .idle = is_idle(floor, r),
            .count = count,
            .nanoseconds = nanoseconds + k * count,
        };
    }
    /* Where a thread does not start, those that did wait for it: the caller ends the process. */
    for (; started < floor->hosted; started++)
        if (pthread_create(&thread[started], NULL, rank_measure, &rank[started]))
            return -1;
    for (int64_t k = 0; k < floor->hosted; k++) {
        pthread_join(thread[k], NULL);
        wrong += rank[k].wrong;
    }
cleanup:
    free(part);
    free(thread);
    free(rank);
    free(table);
    return wrong;
}
