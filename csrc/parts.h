/* What the files of the engine share with each other; neither images nor the host language see it.
 *
 *   arena.c       memory that all processes of a host see
 *   job.c         a job: its tables, where things lie in the arena, loading, failure
 *   run.c         threads that advance ranks
 *   wait.c        how they wait, and are woken
 *   core.c        which core a thread runs on
 *   team.c        who hosts whom, and the members of a group that share this arena or are near
 *   exchange.c    which exchange comes to whom; barriers and permutes
 *   direct.c      inside an arena, members read each other's data, or are given them
 *   reduce.c      reductions, by which algorithm, and broadcasts whose work all share
 *   scan.c        prefixes over the members of several arenas
 *   between.c     collectives between arenas
 *   packet.c      data of the hosted ranks on its way between arenas
 *   mpi.c         the one file that calls MPI
 *   copy.c        strided copies
 *   watch.c       signs of life on a host, and who is late
 *   far.c         signs of life between hosts
 *   rebind.c      what changes between two runs: scalars, states and what runs overwrote in them
 *   data.c        global arrays in and out
 *   follow.c      calls that process 0 makes and all others carry out
 *   start.c       processes that do not come
 *   timeline.c    what ranks did when
 *   probe.c       an image's plan functions alone
 *   point.c       what outermost loops carry, kept and put back
 *   save.c        frames that programs save, on their way to the host language
 *   feed.c        rings of batches, which the host language fills
 *   take.c        ranks take batches out of rings, and send values back
 *   print.c       lines of text on their way to the host language
 *   library.c     the dynamic linker
 */
#ifndef SPMD_PARTS_H
#define SPMD_PARTS_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine.h"
#include "kept.h"
#include "spmd_image.h"

#define SPMD_LINE 64         /* bytes that move between cores as one */
#define SPMD_PAGE 4096
#define SPMD_CORES 1024      /* that are looked after: see core.c */
#define SPMD_FEEDS_SEEN 8    /* whose ends processes compare while they run */
#define SPMD_COPY_BYTES 8192 /* written to several places one after the other, from the cache */

static inline int64_t spmd_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t spmd_round_up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Some members of a team, by their places in it: begin … end - 1, or what is listed there. It fits
 * two registers. */
typedef struct spmd_span {
    int32_t begin, end;
    const int64_t *list; /* NULL: the places themselves */
} spmd_span;

static inline spmd_span spmd_span_of(int64_t begin, int64_t end)
{
    return (spmd_span){.begin = (int32_t)begin, .end = (int32_t)end};
}

static inline int64_t spmd_span_at(spmd_span span, int64_t k)
{
    return span.list ? span.list[k] : k;
}

/* The k-th of them, going round from `own` on where that is one of them: not all begin alike. A
 * list begins with `own`, if it has that. */
static inline int64_t spmd_span_place(spmd_span span, int64_t own, int64_t k)
{
    if (span.list)
        return span.list[k];
    int64_t first = own >= span.begin && own < span.end ? own - span.begin : 0;
    return span.begin + (first + k) % (span.end - span.begin);
}

/* What a rank holds ready at an exchange site. It has two of these, in turn: a member may still
 * read the last but one. Short data travel here, beginning in the line that announces them. */
typedef struct spmd_slot {
    _Alignas(SPMD_LINE) _Atomic uint64_t posted; /* the exchange that it is ready for */
    int64_t where; /* SPMD_IN_PLACE, _HERE, _GIVEN; of a reduction: my result's offset */
    char bytes[];  /* job->slot_bytes of them */
} spmd_slot;

#define SPMD_IN_PLACE 0 /* where the exchange says */
#define SPMD_HERE (-1)
#define SPMD_GIVEN (-2) /* I write it into my readers' memory, and say so */

/* The words of one rank at one exchange site; its two slots lie behind it. Counts only ever grow,
 * over all runs of a job, so that no process has to reset anything. */
typedef struct spmd_site {
    _Alignas(SPMD_LINE) _Atomic uint64_t taken; /* exchanges in which I have read what I read */
    _Atomic uint64_t given; /* exchanges in which I have written what I give */
    _Atomic uint64_t steps; /* of rings */
    _Alignas(SPMD_LINE) _Atomic uint64_t arrivals; /* of all members, where I am member 0 */
    _Atomic int64_t route[2]; /* position + 1 of whoever sends to me; in turn, as slots */
    int64_t dest[2];          /* to whom I send, until all know */
    _Alignas(SPMD_LINE) uint64_t count; /* exchanges that I have begun; from here on only I read */
    uint64_t arrived;                   /* what `arrivals` must reach before I go on */
    spmd_span read_by[2];               /* who read my slots when they were last used */
} spmd_site;

/* Where a thread sleeps. Whoever rings does not need to know who it is. */
typedef struct spmd_bell {
    _Alignas(SPMD_LINE) _Atomic uint32_t rung; /* a futex */
    _Atomic uint32_t sleeps; /* 1: or is about to */
} spmd_bell;

/* One rank in the arena: every process can see where it is, its host alone writes it. */
typedef struct spmd_record {
    spmd_rank rank;
    spmd_bell bell; /* of the thread that hosts this rank first */
    _Alignas(SPMD_LINE) _Atomic int64_t process;
    _Atomic int64_t bell_at; /* the rank whose bell wakes this one */
    _Atomic int64_t runs; /* completed */
    _Atomic int64_t done; /* with the latest run */
    _Atomic int64_t heard; /* agreements on when a set is kept */
    _Alignas(SPMD_LINE) char sites[];
} spmd_record;

/* The first page of an arena. */
typedef struct spmd_header {
    uint64_t nonce;
    int64_t bytes;
    _Atomic uint64_t layout;  /* digest of ranks and sizes: all processes must compute the same */
    _Atomic int64_t threads;  /* of all processes: more than cores means that nobody spins */
    _Alignas(SPMD_LINE) _Atomic uint32_t abort; /* SPMD_FINE, then _CLAIMED, then _SAID */
    _Alignas(SPMD_LINE) spmd_failure failure;   /* valid once SAID */
    _Alignas(SPMD_LINE) _Atomic int64_t agreed; /* how often rank 0 has said when a set is kept */
    int64_t next, due; /* what it said last */
    _Alignas(SPMD_LINE) _Atomic int64_t reach[SPMD_FEEDS_SEEN]; /* see spmd_feeds_seen */
    _Atomic int64_t ends[SPMD_FEEDS_SEEN];
    _Alignas(SPMD_LINE) _Atomic uint32_t orders; /* a futex: what process 0 has told others to do */
    _Atomic int64_t order;                       /* the last one: see spmd_job_lead */
    _Atomic int64_t committed; /* calls that have succeeded in all processes */
    _Alignas(SPMD_LINE) _Atomic uint32_t followed; /* a futex: calls that others have carried out */
    _Alignas(SPMD_LINE) _Atomic int32_t core[SPMD_CORES]; /* who was there last: see core.c */
} spmd_header;

enum { SPMD_FINE = 0, SPMD_CLAIMED = 1, SPMD_SAID = 2 };

/* What a process shows the others of its host; it alone writes it, except `warned`. */
typedef struct spmd_sign {
    _Alignas(SPMD_LINE) _Atomic int64_t pid;
    _Atomic uint64_t beats;
    _Atomic int64_t waiting; /* milliseconds that one of its ranks has waited in an exchange */
    _Atomic int64_t operation, superstep, site, position; /* of its first: spmd_rank_state */
    _Atomic bool leaves;     /* no more beats are to be expected */
    _Atomic uint64_t warned; /* the beat after which it was late, and somebody said so */
} spmd_sign;

/* Behind the first page of a board. */
typedef struct spmd_signs {
    _Atomic int64_t waiting; /* milliseconds that a rank on another host has waited */
    _Atomic int64_t warned;  /* when a slow rank was last reported, in milliseconds */
    spmd_sign of[];          /* by process */
} spmd_signs;

struct spmd_arena {
    spmd_header *header;
    int64_t bytes;
    int fd;
};

/* What the system calls cpu_set_t. */
typedef struct spmd_cores {
    uint64_t word[16];
} spmd_cores;

/* One thread and the ranks it hosts: a range of the job's. */
typedef struct spmd_worker {
    _Alignas(SPMD_LINE) struct spmd_job *job;
    pthread_t thread;
    int64_t first, count, left; /* left: ranks that have not finished this run */
    uint64_t advances; /* stages entered since the job was loaded */
    int64_t spins;     /* tries of an exchange at once: one rank, and a core for every thread */
    int64_t most_spins; /* the same while nobody shares its core */
    int64_t owes_until; /* after a failure, when its ranks leave at the latest; 0: not known yet */
    spmd_bell *bell;
    int64_t idle_since, yields; /* of the wait under way */
    int64_t core, shared_until, moved, pause; /* see core.c */
    spmd_cores allowed;
    bool held;
    uint32_t heard;    /* what `rung` was */
    bool sleepy;
    bool sleeps; /* between runs; under the job's lock */
    spmd_term *term;   /* room for what is folded: two for every rank of this arena */
    _Atomic uint64_t still; /* the job's `advances` that a whole fruitless sweep began with */
} spmd_worker;

/* The members of a group that share this arena, and one leader for each arena that has members.
 * Where one arena holds all, the team is the group. */
typedef struct spmd_team {
    int64_t count, position; /* of the members here; which of them I am */
    int64_t *member;         /* their positions in the group, ascending; NULL: all members */
    int64_t arenas, arena;   /* that have members; which of them is mine */
    int64_t *leader;         /* position in the group of the first member of each */
} spmd_team;

#define SPMD_WRAPS 64 /* of a pair, so many are told apart by bits */

/* Of a site whose flow is SPMD_NEAR: those near me that I read, those that read me, and both, of
 * this arena; I am among the sources at most. How far above or below me those elsewhere are. */
typedef struct spmd_near {
    spmd_span sources, readers, both;
    uint64_t *source_wraps, *reader_wraps; /* for each of a list, bit b: wrap b may have something
                                            * in it, as those from SPMD_WRAPS on may */
    int64_t distances;
    int64_t *distance; /* ascending: all members deal with a pair after the same others */
    int64_t list[];
} spmd_near;

typedef union spmd_handle {
    int number;
    void *pointer;
} spmd_handle;

/* One message on its way. Long ones travel in pieces that MPI can count. */
typedef struct spmd_packet {
    spmd_handle request;
    char *at;
    int64_t bytes, done;
    int process, tag;
    bool send;
} spmd_packet;

/* The packets of one rank that are under way, and room for what must be packed or combined. */
typedef struct spmd_packets {
    spmd_packet *packet;
    int64_t count, capacity, complete; /* the first so many are complete */
    char *room;
    int64_t room_bytes;
    uint64_t sent; /* messages, so far */
    bool under_way;
} spmd_packets;

/* Where a rank is among the turns of the outermost loops, and its part of a set that is kept, or
 * that the run goes on from: what a point carries, array after array, each at a whole line. */
typedef struct spmd_course {
    char *room;
    int64_t bytes;          /* of the room */
    int64_t point, turn;    /* point -1: in no loop yet */
    int64_t sets;           /* that it has put its part to, over all runs */
    int64_t next;           /* agreement, at this turn; with `due`: and a set */
    int64_t agreements;     /* over all runs */
    int64_t since, since_turn, last; /* of rank 0: when it came to that turn; the last set */
    int64_t said[2];        /* next, due: of the first rank of an arena, on their way */
    int64_t held, copied;   /* nanoseconds, and since when it is held up now */
    int64_t held_since;
    int stage;
    bool due, resumed, again, says;
} spmd_course;

/* The part of an array on a hosted rank: what stays as it is while the rank computes. */
typedef struct spmd_piece_of {
    int64_t dims, size, bytes;
    int64_t offset[SPMD_DIMS], extent[SPMD_DIMS];
    int64_t stride[SPMD_DIMS], packed[SPMD_DIMS]; /* in its buffer, and without room around */
    int64_t first; /* byte of the buffer */
} spmd_piece_of;

/* What the engine knows of a rank that it hosts, beside the record in the arena. */
typedef struct spmd_hosted {
    spmd_record *record;
    struct spmd_job *job;
    spmd_worker *worker;
    spmd_kept kept; /* what stores into states overwrite */
    int64_t *home; /* where each buffer is as a run begins; NULL: as the world says */
    const spmd_team *team; /* of the exchange under way */
    spmd_team whole;       /* the team where one arena holds all ranks */
    spmd_team **teams;     /* by site, made when first needed, where there are several arenas */
    spmd_packets packets;
    spmd_site *site; /* of the exchange under way, mine; and so are all that follow */
    spmd_slot *slot;
    uint64_t count;
    spmd_span sources, readers; /* whom I read, and who reads me, of this arena */
    bool gated;      /* all read all, and nobody does before all are there */
    bool in_place, theirs_in_place; /* data are read where they lie, and must stay until then */
    bool gives, theirs_given;       /* data are written to where they are wanted */
    uint64_t target; /* what `arrivals` must reach */
    int64_t next;    /* the source I deal with next */
    int64_t source;  /* of a permute, once known */
    uint64_t base;   /* `steps` when a ring began */
    int around;        /* where strict barriers are: which part of the exchange */
    int64_t algorithm; /* of a reduction */
    bool shares;       /* of a broadcast: all move a part of it */
    int64_t *routes; /* while leaders agree on who sends to whom */
    const spmd_near *near; /* of the exchange under way, where its flow is SPMD_NEAR */
    spmd_near **nears;     /* by site, made when first needed */
    struct spmd_timeline *timeline; /* NULL: none is kept */
    spmd_course turns;
    struct spmd_saved *saves; /* by number; NULL: none is wanted */
    _Atomic int64_t frames; /* of all saves, in this run */
    struct spmd_reader *streams;  /* by feed; NULL: none are given */
    _Atomic int64_t starves; /* since when it waits for a feed; 0: it does not */
    _Atomic uint32_t hungry; /* for which one */
} spmd_hosted;

/* every: turns between two sets; 0: they are `after` nanoseconds apart; both 0: none is kept.
 * resume: the point that this run goes on from; -1: it does not. */
typedef struct spmd_keeping {
    int64_t every, after;
    int64_t resume, turn, counter;
    int64_t set_point, set_turn, set_counter; /* of the set at hand */
    _Atomic int64_t staged;   /* parts of hosted ranks */
    _Atomic int64_t released; /* sets */
} spmd_keeping;

typedef struct spmd_text {
    pthread_mutex_t lock;
    char *bytes;
    int64_t begin, end, capacity;
    int64_t due; /* for rank 0 alone */
} spmd_text;

struct spmd_job {
    const spmd_image *image;
    spmd_engine engine;
    spmd_world world;
    int64_t first, count, threads, cores, strangers, algorithm;
    int64_t *tables;  /* scalars, buffer offsets; one allocation */
    spmd_range *dense; /* bytes of a rank, of each overlay, 0 for none: they are taken at load */
    void **library;
    uint8_t *given;
    int64_t operations, events; /* recorded of every hosted rank */
    int64_t positions;          /* 1 more than the counter with that of a rank; 0: none */
    spmd_processes processes; /* count 0: all ranks share one arena, hosted by whomever */
    spmd_mpi mpi;
    pthread_mutex_t mpi_lock;
    bool parted;              /* there are several arenas */
    bool crowded;             /* as this run began */
    spmd_limits limits[SPMD_CLASSES]; /* every one put, but a ring's that is 0 */
    bool strict;              /* every exchange begins and ends with a barrier of its members */
    int64_t widest;           /* most ranks that one process hosts */
    int64_t lowest, highest;  /* ranks of this arena; others may lie between them */
    int64_t slot_bytes, site_bytes; /* what a slot holds; a site with its slots */
    int64_t rank_bytes, record_bytes, records_at, memory_at, arena_bytes;

    spmd_arena *arena; /* from load on */
    spmd_hosted *hosted;
    int64_t *words;    /* at_load, buffer offsets and counters of the hosted ranks */
    int64_t *homes;    /* of the hosted ranks; NULL: nothing has taken another's place yet */
    spmd_worker *worker;
    int64_t started;   /* threads that were created */
    _Atomic uint64_t advances; /* of all workers */

    pthread_mutex_t lock; /* of the fields below; who spins reads run and active without it */
    pthread_cond_t go;    /* workers wait for a run or the end */
    pthread_cond_t news;  /* the host language waits for the end of a run, or text */
    _Atomic int64_t run;    /* runs started */
    _Atomic int64_t active; /* workers that have not finished this run */
    bool closing, here; /* here: the run is for the thread that waits for it, which is not at it */
    int64_t run_here; /* the latest run that no worker makes */
    const spmd_call *const *calls; /* while this process follows, by number */
    int64_t call;         /* of these the one that runs */
    uint32_t led, heard;  /* what `followed` will be; orders that this process has heard */
    int64_t call_count;   /* calls that this process has led, or followed */
    bool pending;         /* the latest of these has run here, and perhaps not everywhere */
    _Atomic bool follows;
    int at_orders;        /* workers that take an order, or end one */
    bool left;            /* told to */
    pthread_cond_t heed;  /* the watch sleeps here */
    bool heed_over;
    spmd_arena *board;
    struct spmd_watch *watch;
    spmd_text text;
    spmd_keeping keeping;
    _Atomic int64_t frames_wait; /* that nobody has written so far */
    bool frames_come; /* in this run, for the host language alone */
    struct spmd_fed *feds; /* by feed; NULL until the first is given */
};

/* arena.c */
spmd_record *spmd_job_record(const spmd_job *job, int64_t rank);
spmd_site *spmd_job_site(const spmd_job *job, int64_t rank, uint32_t site);
char *spmd_job_memory(const spmd_job *job, int64_t rank);
int spmd_pages_take(char *from, int64_t bytes);

/* job.c */
int spmd_buffers_place(spmd_job *job, int64_t *buffer); /* sets rank_bytes, too */
const int64_t *spmd_rank_home(const spmd_rank *rank); /* of buffers, as a run begins */
void spmd_buffers_reset(spmd_rank *rank);
bool spmd_arena_abort(spmd_arena *arena, const spmd_failure *failure);
int64_t spmd_rank_position(const spmd_job *job, const volatile spmd_rank *rank);
void spmd_rank_fail(const spmd_rank *rank, int64_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline bool spmd_job_aborted(const spmd_job *job)
{
    return atomic_load_explicit(&job->arena->header->abort, memory_order_acquire) != SPMD_FINE;
}

/* Of this run. */
static inline const spmd_limits *spmd_job_limits(const spmd_job *job)
{
    return &job->limits[job->crowded ? SPMD_CROWDED : SPMD_SPACIOUS];
}

/* run.c */
int spmd_workers_start(spmd_job *job);
int spmd_workers_stop(spmd_job *job);
int spmd_run_start(spmd_job *job, const uint8_t *given, bool here);
void spmd_here_leave(spmd_job *job); /* the caller holds the lock */
bool spmd_job_runs(const spmd_job *job);

/* data.c and follow.c */
int spmd_call_get(spmd_job *job, const spmd_call *call);
void spmd_call_commit(spmd_job *job);
void spmd_order_take(spmd_job *job);
void spmd_order_done(spmd_job *job);

/* wait.c */
#define SPMD_NEXT_NS 100000 /* whoever has nothing to do looks so long before it sleeps */
bool spmd_job_crowded(const spmd_job *job);
void spmd_wait(spmd_worker *worker);
void spmd_wait_over(spmd_worker *worker);
void spmd_span_ring(const spmd_hosted *me, const spmd_exchange *exchange, spmd_span span);
void spmd_job_ring(const spmd_job *job);
void spmd_rank_ring(const spmd_job *job, int64_t rank);

/* save.c */
int spmd_rank_save(spmd_rank *rank, uint32_t save);
void spmd_rank_turn(spmd_rank *rank, uint32_t save, int begins);
void spmd_saves_reset(spmd_hosted *me);
void spmd_saves_keep(spmd_hosted *me);
void spmd_saves_resume(spmd_hosted *me, int64_t turn);
void spmd_saves_free(spmd_hosted *me);
bool spmd_frames_wait(const spmd_job *job);
bool spmd_owes_frames(const spmd_hosted *me);

/* point.c */
int spmd_rank_point(spmd_rank *rank, uint32_t number, int64_t *counter);
void spmd_turns_reset(spmd_hosted *hosted);
bool spmd_set_waits(const spmd_job *job);
bool spmd_set_held(spmd_job *job);
spmd_piece_of spmd_array_piece(const spmd_rank *rank, const spmd_image *image, uint32_t array);

/* core.c */
void spmd_core_choose(spmd_worker *worker);
void spmd_core_begin(spmd_worker *worker);
bool spmd_core_shared(spmd_worker *worker, int64_t now);

/* start.c */
void spmd_say(const char *text); /* on standard error, whether anybody reads it or not */

/* watch.c and far.c */
typedef struct spmd_far spmd_far;
typedef struct spmd_fars {
    spmd_far *far; /* the hosts that this process exchanges beats with */
    int64_t count;
} spmd_fars;
int64_t spmd_now(void);
bool spmd_process_is_stopped(int64_t pid);
spmd_signs *spmd_job_signs(const spmd_job *job);
int64_t spmd_signs_waiting(const spmd_job *job);
bool spmd_watch_lost(spmd_job *job, spmd_notice *notice, int64_t cause);
void spmd_watch_free(spmd_job *job);
bool spmd_fars_open(spmd_job *job, spmd_fars *fars);
void spmd_fars_begin(spmd_fars *fars, int64_t now);
bool spmd_fars_watch(spmd_job *job, spmd_fars *fars, int64_t turn, int64_t limit,
                     spmd_notice *notice);
void spmd_fars_tell(spmd_job *job, spmd_fars *fars);
void spmd_fars_leave(spmd_job *job, spmd_fars *fars, int64_t limit);
void spmd_fars_free(spmd_fars *fars);

/* timeline.c */
typedef int (*spmd_advance)(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange);
int spmd_timeline_try(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange,
                      spmd_advance advance);
void spmd_timeline_fed(spmd_hosted *me, int64_t since, int64_t begin, int64_t bytes);
void spmd_timeline_begin(spmd_hosted *me);
void spmd_timeline_end(spmd_hosted *me);
void spmd_timeline_free(spmd_hosted *me);

/* team.c */
int spmd_processes_take(spmd_job *job, const spmd_settings *settings);
int64_t spmd_rank_process(const spmd_job *job, int64_t rank);
bool spmd_process_here(const spmd_job *job, int64_t process); /* on this host */
bool spmd_rank_near(const spmd_job *job, int64_t rank); /* in this arena */
bool spmd_team_find(spmd_hosted *me, const spmd_exchange *exchange);
spmd_span spmd_team_search(const spmd_team *team, int64_t begin, int64_t end);
bool spmd_near_find(spmd_hosted *me, const spmd_exchange *exchange);
void spmd_nears_free(spmd_hosted *hosted, uint32_t sites);
void spmd_teams_free(spmd_hosted *hosted, uint32_t sites);
static inline int64_t spmd_team_member(const spmd_team *team, int64_t k)
{
    return team->member ? team->member[k] : k;
}

/* The number by which the box of a member and a wrap is asked for. */
static inline int64_t spmd_wrap_of(const spmd_exchange *exchange, int64_t member, int64_t wrap)
{
    return member + wrap * exchange->members;
}

/* Whether a wrap of the k-th of those near has to be looked at. */
static inline bool spmd_wrap_moves(const uint64_t *wraps, int64_t k, int64_t wrap)
{
    return !wraps || wrap >= SPMD_WRAPS || wraps[k] >> wrap & 1;
}

/* The places of members begin … end - 1. */
static inline spmd_span spmd_team_span(const spmd_team *team, int64_t begin, int64_t end)
{
    return team->member ? spmd_team_search(team, begin, end) : spmd_span_of(begin, end);
}

/* exchange.c; rank->stage: 0, then SPMD_BEGUN, and then what the kind makes of it */
#define SPMD_BEGUN 1
int spmd_exchange_advance(spmd_rank *rank);
int64_t spmd_member_rank(const spmd_exchange *exchange, int64_t member);
bool spmd_member_far(const spmd_hosted *me, const spmd_exchange *exchange, int64_t member);
bool spmd_member_reads(const spmd_exchange *exchange, int64_t member, int64_t source);
const char *spmd_exchange_name(const spmd_exchange *exchange);

/* direct.c; a place is a member's position in its team */
spmd_site *spmd_place_site(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place);
char *spmd_place_memory(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place);
const spmd_slot *spmd_place_slot(const spmd_hosted *me, const spmd_exchange *exchange,
                                 int64_t place);
void spmd_count_begin(spmd_hosted *me, const spmd_exchange *exchange);
void spmd_team_arrive(spmd_hosted *me, const spmd_exchange *exchange);
bool spmd_team_passed(const spmd_hosted *me, const spmd_exchange *exchange);
bool spmd_slot_free(const spmd_hosted *me, const spmd_exchange *exchange);
void spmd_flow_find(spmd_hosted *me, const spmd_exchange *exchange);
#define SPMD_DIRECT_BEGIN 8 /* rank->stage, when it begins */
bool spmd_direct(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange);

/* reduce.c */
bool spmd_shares_work(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange);
bool spmd_blocks(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange);
int spmd_reduce(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange);

/* scan.c */
int spmd_scan(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange);

/* between.c; rank->stage is SPMD_BETWEEN when they begin, and beyond it until they are complete */
#define SPMD_BETWEEN (1u << 24)
int spmd_barrier_between(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange);
int spmd_pull_between(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange);
int spmd_reduce_between(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange, char *into,
                        int64_t elements, int64_t size, spmd_fold fold);

/* packet.c */
char *spmd_packets_room(spmd_hosted *me, int64_t bytes);
void spmd_packet_send(spmd_hosted *me, int64_t to, const void *from, int64_t bytes);
void spmd_packet_receive(spmd_hosted *me, int64_t from, void *into, int64_t bytes);
bool spmd_packets_done(spmd_hosted *me);
void spmd_packets_free(spmd_hosted *hosted);

/* mpi.c; the caller holds job->mpi_lock. false: the error says what MPI says */
typedef struct spmd_mpi_error {
    char text[512];
} spmd_mpi_error;
bool spmd_mpi_send(spmd_job *job, bool synchronous, const void *from, int bytes, int to, int tag,
                   spmd_handle *request, spmd_mpi_error *error);
bool spmd_mpi_receive(spmd_job *job, void *into, int bytes, int from, int tag,
                      spmd_handle *request, spmd_mpi_error *error);
bool spmd_mpi_test(spmd_job *job, spmd_handle *request, bool *complete, spmd_mpi_error *error);

/* copy.c */
int64_t spmd_box_elements(const spmd_box *box);
void spmd_box_copy(char *into_memory, const spmd_box *into, const char *from_memory,
                   const spmd_box *from, int64_t size);
void spmd_box_take(const spmd_rank *rank, const spmd_exchange *exchange, const spmd_box *into,
                   const char *from_memory, const spmd_box *from);
void spmd_run_copy(char *into, const char *from, int64_t bytes);
bool spmd_box_contiguous(const spmd_box *box, int64_t size);
void spmd_box_pack(char *into, const char *memory, const spmd_box *from, int64_t size);
void spmd_box_unpack(char *memory, const spmd_box *into, const char *from, int64_t size);
void spmd_box_zero(char *memory, const spmd_box *box, int64_t size);
void spmd_box_packed(spmd_box *packed, const spmd_box *box, int64_t size);
void spmd_box_fold(char *into_memory, const spmd_box *into, const spmd_box *from, int64_t size,
                   spmd_fold fold, spmd_term *term, int64_t terms);
void spmd_fold_two(spmd_fold fold, void *into, const void *first, const void *second, int64_t n);
void spmd_array_copy(char *into, const int64_t *into_stride, const char *from,
                     const int64_t *from_stride, const int64_t *extent, int64_t dims,
                     int64_t size, int64_t swap);

/* print.c */
int spmd_text_open(spmd_text *text);
void spmd_text_close(spmd_text *text);
int spmd_rank_due(spmd_rank *rank);
void spmd_rank_print(spmd_rank *rank, const char *line, int64_t length);
void spmd_rank_end(spmd_rank *rank, uint32_t operation, const char *text, int64_t length);
bool spmd_text_waits(spmd_text *text);

#include "feed.h"

#endif
