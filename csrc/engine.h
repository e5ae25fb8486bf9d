/* The engine: hosts some ranks of a job on a few threads and exchanges data between all of them.
 *
 * A job is used in this order: new, (bytes), load with an arena, then any number of times scatter,
 * start, wait until it is no longer running, gather; then free. The section between the two marker
 * comments is also read by spmd/engine/build_engine.py: plain declarations only.
 */
#ifndef SPMD_ENGINE_H
#define SPMD_ENGINE_H

#include <stdint.h>

/* <cdef> */
typedef struct spmd_job spmd_job;
typedef struct spmd_arena spmd_arena;
typedef struct spmd_ring spmd_ring;

enum spmd_status {
    SPMD_OK = 0,
    SPMD_NO_MEMORY = 1, /* the machine has not enough memory */
    SPMD_SYSTEM = 2,    /* a system call failed; errno says why */
    SPMD_MISMATCH = 3,  /* another interface version, or not the memory that was agreed on */
    SPMD_RANGE = 4,     /* an argument out of its range */
    SPMD_BUSY = 5,      /* not while the job runs */
    SPMD_CUT = 6,       /* of a mapped file less is there than there was */
};

enum spmd_job_state {
    SPMD_IDLE = 0,     /* loaded, not started */
    SPMD_RUNNING = 1,  /* text may be waiting: take it, then wait again */
    SPMD_FINISHED = 2, /* every hosted rank is done */
    SPMD_ABORTED = 3,  /* the failure says why; the job can only be freed */
};

enum spmd_algorithm {
    SPMD_AUTO = 0,   /* chosen by members and bytes */
    SPMD_FLAT = 1,   /* every member folds everything itself */
    SPMD_BLOCKS = 2, /* member k folds block k and writes it into all results */
    SPMD_RING = 3,   /* of long all-reduces: fragments travel in both directions; else blocks */
};

#define SPMD_EVERY_RANK -1
#define SPMD_NOT_RUNNING -2 /* reading inputs, writing outputs */
#define SPMD_TEXT_BYTES 1024
#define SPMD_FRAME_BYTES 67108864 /* of a save, in a process: about what its rings of frames take */

/* MPI as this process loaded it: functions, and handles of its family (4-byte integers in MPICH,
 * pointers in Open MPI and in the standard ABI). comm is the job's alone, and returns errors. */
typedef struct spmd_mpi {
    void *isend, *issend, *irecv, *test, *error_string;
    int64_t handle_bytes, comm, byte;
} spmd_mpi;

/* The processes of a job: which ranks each of them hosts, and with whom it shares memory. Arenas
 * and hosts are numbered: 0 is that of process 0, then in order. */
typedef struct spmd_processes {
    int64_t count, number; /* how many, and which this one is */
    const int64_t *first;  /* rank of each; behind the last one the number of ranks */
    const int64_t *arena;  /* whose memory each of them shares */
    const int64_t *host;   /* where it runs: processes of one host share a board */
    const spmd_mpi *mpi;   /* between arenas; NULL where there is only one */
} spmd_processes;

/* At which sizes data travel in another way, in bytes. 0: what this engine finds good. All that
 * come to an exchange must have the same. */
typedef struct spmd_limits {
    int64_t slot;  /* up to here, and up to what a slot holds, data travel in slots */
    int64_t fold;  /* up to here everybody folds whole vectors; beyond, a block of them */
    int64_t share; /* from here on all move a part of a broadcast; never where crowded */
    int64_t ring;  /* from here on an all-reduce goes round; 0: never */
} spmd_limits;

enum spmd_class {
    SPMD_SPACIOUS = 0, /* a core for every thread of the host */
    SPMD_CROWDED = 1,  /* threads share cores */
};
#define SPMD_CLASSES 2

/* Puts what this engine finds good, among so many ranks of an arena, for every 0 but a ring's. */
void spmd_limits_fill(spmd_limits *limits, int64_t ranks);

/* What a job is made of. Everything is copied except the image, which must outlive the job. */
typedef struct spmd_settings {
    const void *image;     /* its spmd_image_table */
    int64_t ranks;         /* of the whole job */
    const int64_t *size;   /* SPMD_AXES of them; 1 beyond the last axis */
    const int64_t *scalar; /* as many as the image declares */
    int64_t scalars;
    int64_t first, count;  /* the ranks that this process hosts */
    int64_t threads;       /* that run them; 0: one per core, at most one per rank */
    int64_t cores;         /* usable by all processes of this host; 0: ask the system */
    int64_t strangers;     /* threads of this job on the host, in other arenas than this one */
    int64_t algorithm;     /* enum spmd_algorithm, of reductions */
    int64_t strict;        /* 1: every exchange begins and ends with a barrier of its members */
    void *const *library;  /* routines by logical number */
    int64_t libraries;
    const spmd_processes *processes; /* NULL: all ranks share one arena */
    spmd_limits limits[SPMD_CLASSES]; /* by enum spmd_class */
} spmd_settings;

/* A global array in the host language's memory. Strides are bytes and may be negative or 0. */
typedef struct spmd_global {
    char *base;           /* of the element with all indices 0 */
    int64_t dims;
    const int64_t *shape;
    const int64_t *stride;
    int64_t size;         /* bytes of one element */
    int64_t swap;         /* reverse every so many bytes (foreign byte order); 0: do not */
} spmd_global;

/* Why a job was aborted: the first cause wins, on all processes. */
typedef struct spmd_failure {
    int64_t code;      /* the exit code that was asked for */
    int64_t rank;      /* -1: no rank in particular */
    int64_t operation; /* row of the manifest's operation table; -1: not known */
    int64_t superstep;
    int64_t site;      /* row of the manifest's exchange table; -1: in no exchange */
    char text[SPMD_TEXT_BYTES];
} spmd_failure;

/* Where a rank is: of any rank of this process's arena. */
typedef struct spmd_rank_state {
    int64_t process;   /* that hosts it; 0: not loaded yet */
    int64_t operation; /* row of the manifest's operation table */
    int64_t superstep; /* exchanges completed in this run */
    int64_t site;      /* the exchange in which it waits; -1: in none */
    int64_t position;  /* what the program says of where it is; 0: nothing */
    int64_t runs;      /* completed by this rank */
    int64_t done;      /* 1: it has finished the latest run that was started here */
} spmd_rank_state;

enum spmd_notice_kind {
    SPMD_NOTICE_END = 0,  /* the watch was ended */
    SPMD_NOTICE_LATE = 1, /* a process has given no sign of life for half the limit */
    SPMD_NOTICE_SLOW = 2, /* a rank computes while others have waited for half the limit */
    SPMD_NOTICE_LOST = 3, /* a process is gone, or silent for too long: the job is aborted */
};

enum spmd_cause {
    SPMD_SILENT = 0,  /* no sign of life, the reason is not known */
    SPMD_STOPPED = 1, /* by a signal, or in a debugger */
    SPMD_GONE = 2,    /* the process has ended */
};

/* What the watch found; for exactly one process of the job. */
typedef struct spmd_notice {
    int64_t kind, cause;
    int64_t process;      /* number in the job */
    int64_t pid;          /* 0: on another host */
    int64_t rank, ranks;  /* the first one that it hosts (or the slow one), and how many it hosts */
    int64_t operation, superstep; /* of that rank, as in spmd_rank_state */
    int64_t site;         /* so is this; or SPMD_NOT_RUNNING */
    int64_t position;     /* so is this */
    int64_t milliseconds; /* that it has been silent, or computing */
} spmd_notice;

/* While processes wait for each other in MPI_Init. The texts must last until the end. */
typedef struct spmd_start {
    int64_t warn_ms, end_ms; /* milliseconds after the beginning */
    int64_t code;            /* to end with */
    const char *warning, *error;
} spmd_start;

const char *spmd_status_text(int status);

/* Writes the warning, then the error, to standard error, and ends the process; unless the end of
 * the start comes first. */
int spmd_start_begin(const spmd_start *given);
void spmd_start_end(void);

/* While this process waits for the others in MPI_Finalize: whoever of `processes` of this host is
 * stopped is warned of, with its text, after half the limit; at the limit it is ended, and so is
 * this process. before: how many of them stand before this one in the job. Has no end. */
typedef struct spmd_finish {
    int64_t processes, before;
    const int64_t *pid;
    const char *const *warning, *const *error;
    int64_t limit_ms, late_ms; /* late: than the first of those who are not stopped */
    int64_t code;
} spmd_finish;

int spmd_finish_begin(const spmd_finish *given);

/* From now on SIGINT and SIGTERM, where they are not ignored, end this process: 128 and the number
 * is its exit code. waits: until `tell`, for a few seconds. tell: first the number goes to this
 * file, as a byte, and whoever reads it has a few seconds; -1: nobody does. words: what goes to
 * standard error at once; none so far. told: the number; 0: not yet. */
int spmd_leave_begin(int waits);
int spmd_leave_told(void);
void spmd_leave_tell(int file);
int spmd_leave_words(const char *words);

/* From now on SIGURG makes the main thread append spmd_where_bytes() to this file: where it is. */
int spmd_where_begin(int file);
int64_t spmd_where_bytes(void);
int spmd_where_ask(int64_t process); /* sends it */

/* A long copy for a reader on another core: lines of `into` that its cache has are not fetched from
 * it only to be overwritten, which takes longer than the copy. */
void spmd_copy_lines(char *into, const char *from, int64_t bytes);

/* Memory that all processes of one host see. shared 0: private to this process. */
int spmd_arena_new(int64_t bytes, int shared, spmd_arena **arena);
/* path is /proc/PID/fd/FD of the process that made it; the nonce proves that it is the same. */
int spmd_arena_attach(const char *path, int64_t bytes, uint64_t nonce, spmd_arena **arena);
int spmd_arena_fd(const spmd_arena *arena); /* -1 when private or closed */
uint64_t spmd_arena_nonce(const spmd_arena *arena);
void spmd_arena_close_fd(spmd_arena *arena); /* once all have attached */
void spmd_arena_free(spmd_arena *arena);     /* after the jobs in it */
/* Of an arena without a job: what lies behind its first bytes, which are the engine's. */
#define SPMD_ARENA_HEAD 4096
void *spmd_arena_memory(const spmd_arena *arena);

int spmd_job_new(const spmd_settings *settings, spmd_job **job);
int64_t spmd_job_bytes(const spmd_job *job);      /* that its arena needs */
int64_t spmd_job_rank_bytes(const spmd_job *job); /* that each rank takes, there and elsewhere */
int64_t spmd_job_private_bytes(const spmd_job *job); /* that the hosted ranks take elsewhere */
int64_t spmd_job_threads(const spmd_job *job);
/* Takes all memory of the hosted ranks and lets the image evaluate what depends on the index. */
int spmd_job_load(spmd_job *job, spmd_arena *arena);
/* Before the first run: where section .spmd.constants of its image lies, until the job is freed. */
void spmd_job_constants(spmd_job *job, const void *constants);
/* Between two runs: other values of the scalars, as many as the image declares. SPMD_RANGE, and
 * nothing has changed, where buffers would take more or less memory, and where the image has feeds
 * or points: then the job must be loaded anew. Does nothing where another process has aborted
 * the job meanwhile: its next run says so. */
int spmd_job_scalars(spmd_job *job, const int64_t *scalar);
/* The same where only scalars have other values that no formula of load() or reserve(), and no box
 * of an exchange, mentions. */
int spmd_job_set_scalars(spmd_job *job, const int64_t *scalar);
/* After a run: of each pair of buffers, old and new, what the run has left in the second one is in
 * the first one from now on, and the other way round: nothing is copied. They are of one size. What
 * the run has overwritten in states is no longer kept: it cannot be undone. */
int spmd_job_replace(spmd_job *job, const uint32_t *pair, int64_t pairs);
/* Called by images, from a step: these bytes are about to be overwritten, in a state. */
void spmd_keep(void *at, int64_t bytes);
/* After a run, until spmd_job_replace: what was overwritten in states is put back. SPMD_BUSY: a
 * thread is still inside a compute phase. */
int spmd_job_undo(spmd_job *job);
/* SPMD_BUSY: it runs, or was aborted and a thread is still inside a compute phase, or MPI may still
 * write into its memory; nothing was freed. The arena and the image must then stay as well. */
int spmd_job_free(spmd_job *job);

/* What one rank did: a compute phase, an exchange, or a wait in one (kept before the exchange that
 * it is a part of). Times are of the system's monotonic clock, in nanoseconds: one for all of a
 * host. */
typedef struct spmd_event {
    int64_t begin, end;
    int64_t busy;      /* of that time, what was not spent waiting */
    int64_t bytes;     /* that an exchange brought */
    int64_t operation; /* row of the manifest's operation table */
    int64_t waits;     /* 1: a wait */
    int64_t position;  /* as in spmd_rank_state, when it began */
} spmd_event;

/* The events of one rank and operation, all together. */
typedef struct spmd_total {
    int64_t count, time, busy, bytes;
    int64_t longest; /* event */
} spmd_total;

/* After load, before a run: in which of its counters the image says where a rank is. */
int spmd_job_positions(spmd_job *job, int64_t counter);

/* After load. From the next run on, that many events of every hosted rank are kept, and totals of
 * so many operations. */
int spmd_job_timeline(spmd_job *job, int64_t operations, int64_t events);
/* Of the latest run, once it has finished; until the next one or the end of the job. Returns how
 * many events there were, also where there was no room for all of them; -1: none are kept. */
int64_t spmd_job_events(const spmd_job *job, int64_t rank, const spmd_event **events,
                        const spmd_total **totals);

/* Arrays are numbered inputs first, then outputs. rank may be SPMD_EVERY_RANK. */
int spmd_job_scatter(spmd_job *job, int64_t array, int64_t rank, const spmd_global *from);
/* Of an aborted job: inputs that no run writes to, such as states, still are what they were. */
int spmd_job_gather(spmd_job *job, int64_t array, int64_t rank, const spmd_global *into);
/* A hosted rank's part: where it lies in the global array, and its row-major memory: of an input
 * where every run looks for it, of an output where the latest one has left it. */
int spmd_job_shard(spmd_job *job, int64_t array, int64_t rank, int64_t *offset, int64_t *extent,
                   void **address);

/* A hosted rank's share of a check sum of all elements and their places, which may be added up in
 * any order: the sum over the ranks that have each element once is that of the array. */
int spmd_job_sum(spmd_job *job, int64_t array, int64_t rank, uint64_t *sum);

/* Once all processes that share the arena have loaded. given: one byte per input, 1 when it was
 * scattered, then one per output, 1 when it is wanted; NULL: no input was, all outputs are. May be
 * called again after SPMD_FINISHED. */
int spmd_job_start(spmd_job *job, const uint8_t *given);
/* What a call puts into the memory of hosted ranks before a run, or takes from it afterwards. */
typedef struct spmd_transfer {
    int64_t array, rank; /* as spmd_job_scatter, spmd_job_gather take them */
    spmd_global global;
} spmd_transfer;

/* A prepared run: what spmd_job_set_scalars, _scatter, _start, _gather and _replace take. here: the
 * thread that starts it and then waits for it may run the ranks itself, where one worker would have
 * them all: no thread has to be woken. It looks for signals between compute phases only. */
typedef struct spmd_call {
    const int64_t *scalar;
    const uint8_t *given;
    const spmd_transfer *put, *get;
    int64_t puts, gets;
    const uint32_t *pair;
    int64_t pairs;
    int64_t here;
} spmd_call;

/* Sets the scalars, puts the arrays, starts the run; then wait as for any other. */
int spmd_call_start(spmd_job *job, const spmd_call *call);
/* After SPMD_FINISHED: takes the arrays; pairs of buffers change places. */
int spmd_call_finish(spmd_job *job, const spmd_call *call);
/* Where all processes share an arena: process 0 leads, the others follow. Every process has the
 * same calls, by number, whose scalars and arrays lie in memory that all of them see. The others
 * carry out the call of this number, puts and gets included; or they leave, with SPMD_LEAVE. */
#define SPMD_LEAVE -1
void spmd_job_lead(spmd_job *job, int64_t call);
/* SPMD_FINISHED once the others have carried out all calls, SPMD_ABORTED, or SPMD_RUNNING after
 * timeout_ms. */
int spmd_job_led(spmd_job *job, int64_t timeout_ms);
/* Carries out what process 0 leads. SPMD_FINISHED when told to leave, SPMD_ABORTED, or SPMD_RUNNING
 * after timeout_ms, or when text waits: then again, with the same calls. */
int spmd_job_follow(spmd_job *job, const spmd_call *const *calls, int64_t timeout_ms);
/* enum spmd_job_state; SPMD_RUNNING after timeout_ms, or as soon as text is waiting. */
int spmd_job_wait(spmd_job *job, int64_t timeout_ms);
/* Takes whole lines, each with its newline; returns the bytes written, 0 when there are none. */
int64_t spmd_job_text(spmd_job *job, char *into, int64_t capacity);
/* Ends the run of all processes in this arena, promptly; wait then says SPMD_ABORTED. */
void spmd_job_abort(spmd_job *job, int64_t code, int64_t rank, const char *text);
int spmd_job_failure(const spmd_job *job, spmd_failure *failure); /* 1: there is one */
int spmd_job_watch(const spmd_job *job, int64_t rank, spmd_rank_state *state);

/* ---- checkpoints: what the image's points carry, kept while it runs. */

/* From the next run on a set is kept every so many turns of an outermost loop; or, where that is 0,
 * about every so many nanoseconds; both 0: never. Alike in all processes. */
int spmd_job_keep(spmd_job *job, int64_t every, int64_t nanoseconds);

/* A set of which every hosted rank has put its part into its room, for whoever writes it. */
typedef struct spmd_set {
    int64_t point, turn, counter;
} spmd_set;
int spmd_job_set(const spmd_job *job, spmd_set *set); /* 1: there is one */
void spmd_job_release(spmd_job *job); /* its rooms may be written to again */

/* Where a hosted rank's part of an array lies: in the array, in its room, of how many bytes. */
int spmd_job_room(const spmd_job *job, int64_t array, int64_t rank, int64_t *offset,
                  int64_t *extent, void **address, int64_t *bytes);

int64_t spmd_job_dims(const spmd_job *job, int64_t array);

/* The next run goes on from this set: then each room is filled. point -1: it begins. */
int spmd_job_resume(spmd_job *job, const spmd_set *set);
/* Puts into a hosted rank's room what it has of a part of an array: contiguous, row-major. */
int spmd_job_refill(spmd_job *job, int64_t array, int64_t rank, const int64_t *offset,
                    const int64_t *extent, const void *from);
int spmd_job_resumed(const spmd_job *job); /* 1: all hosted ranks went on from it */
/* Nanoseconds that hosted ranks were held up in the latest run, by the one who was most; and of it,
 * what copying took. */
void spmd_job_held(const spmd_job *job, int64_t *held, int64_t *copied);

/* ---- saves: arrays that the program hands over in every so many turns of a loop. */

/* From the next run on a hosted rank counts the frames of a save, in every so many turns; where it
 * writes, its parts wait for whoever takes them, and it waits where there is no room for more.
 * every 0: it makes none. To be said again when scalars have changed on which its part depends. */
int spmd_job_save(spmd_job *job, int64_t save, int64_t rank, int64_t every, int writes);
/* A run that goes on from a set goes on with this frame. */
int spmd_job_save_from(spmd_job *job, int64_t save, int64_t rank, int64_t frames);

/* A hosted rank's part of a frame: contiguous, row-major. order: how many frames, of all saves that
 * are counted, the rank has come to before it in this run: the same on all ranks. */
typedef struct spmd_frame {
    int64_t number, order, bytes;
    int64_t offset[8], extent[8];
    void *data;
} spmd_frame;
int spmd_job_frame(const spmd_job *job, int64_t save, int64_t rank, spmd_frame *frame); /* 1: one */
void spmd_job_frame_written(spmd_job *job, int64_t save, int64_t rank); /* the next may be asked */

/* 1: the run was aborted by a hosted rank, and others still come to the frames that it had made. */
int spmd_job_owes_frames(const spmd_job *job);

/* Frames that a rank has come to; kept: until the set at hand. */
int64_t spmd_job_frames(const spmd_job *job, int64_t save, int64_t rank, int kept);
/* Nanoseconds for which a hosted rank waited for room in this run, by the one that did longest. */
int64_t spmd_job_save_held(const spmd_job *job, int64_t save);

/* ---- feeds: batches that the host language puts into rings while ranks take them.
 *
 * Ranks of this process that hold the same rows of a batch share a ring, which one thread of the
 * host language fills. Batches are numbered from 0 on; the latest `depth` of them, from the first
 * that not all ranks of the ring have taken and left, may be there at a time: a rank may read one
 * where it lies until it asks for the next. */

/* shape: dims, and an extent for each, of the fields and then of the values that are sent back. */
typedef struct spmd_feed {
    const char *name;
    int64_t depth, fields, values;
    const int64_t *shape;
} spmd_feed;

/* After load, once for each feed, while the job does not run. SPMD_RANGE: the image is another. */
int spmd_job_feed(spmd_job *job, int64_t feed, const spmd_feed *given);
/* Its stream begins, at this batch: what is in the rings is forgotten. Alike in all processes. */
int spmd_job_feed_begin(spmd_job *job, int64_t feed, int64_t start);
int64_t spmd_job_feed_rings(const spmd_job *job, int64_t feed);
spmd_ring *spmd_job_feed_ring(const spmd_job *job, int64_t feed, int64_t k);
void spmd_ring_rows(const spmd_ring *ring, int64_t *begin, int64_t *end);
/* Batch k is there: pieces of it, which stay where they are until all have left it. row: of each
 * piece its first row in the batch, how many rows, and the address of each field. They do not
 * overlap and ascend; rows of no piece are zeros. One that nobody waits for any more is dropped.
 * SPMD_BUSY: there is no room for it. SPMD_RANGE: it is there, or its rows are not the ring's. */
int spmd_ring_put(spmd_ring *ring, int64_t k, int64_t pieces, const int64_t *row);
/* The batches from k on, which lie one behind the other in memory; row: of batch k. */
int spmd_ring_put_many(spmd_ring *ring, int64_t k, int64_t batches, int64_t pieces,
                       const int64_t *row);
/* The stream has k batches. */
int spmd_ring_end(spmd_ring *ring, int64_t k);
int64_t spmd_ring_taken(const spmd_ring *ring); /* by all ranks of the ring: batches before this */
int spmd_ring_event(const spmd_ring *ring); /* an eventfd: something was taken, or sent */
/* Whoever fills it puts no more than so many batches ahead of those taken; `depth` at first. The
 * event is told when a quarter of them was taken. */
void spmd_ring_ahead(spmd_ring *ring, int64_t batches);
/* The values sent behind batch k, by field: rows of the ring. SPMD_BUSY: not all have sent. They
 * stay until they are let go; as long as that, no values behind batch k + depth can be sent. */
int spmd_ring_sent(spmd_ring *ring, int64_t k, void **values);
void spmd_ring_let_go(spmd_ring *ring, int64_t k);
/* 1: a rank of it waits for batch k. 2: one that has sent nothing behind the batch before. */
int spmd_ring_wants(const spmd_ring *ring, int64_t k);
/* Nanoseconds that a rank of this ring has waited since its first batch, and that passed in all;
 * means. */
void spmd_ring_waits(const spmd_ring *ring, int64_t *waited, int64_t *passed);
/* The same of the hosted rank that waited most. */
void spmd_job_feed_waits(const spmd_job *job, int64_t feed, int64_t *waited, int64_t *passed);
/* Once it has run: batches that hosted ranks have taken, and how often the first of them was told
 * that there are no more. SPMD_RANGE where they differ in the one, or in whether they were told. */
int spmd_job_feed_taken(const spmd_job *job, int64_t feed, int64_t *taken, int64_t *over);
/* Which hosted rank has waited for a feed the longest, for which batch of it: for how many
 * nanoseconds. 0: none waits. */
int64_t spmd_job_starves(const spmd_job *job, int64_t *rank, int64_t *feed, int64_t *batch);
/* Of the set at hand, or of the one that the next run goes on from: the batches that were taken,
 * and the one that the stream has to begin at, which is earlier where some were taken before the
 * loop. */
int spmd_job_set_feed(const spmd_job *job, int64_t feed, int64_t *taken, int64_t *from);
int spmd_job_resume_feed(spmd_job *job, int64_t feed, int64_t taken, int64_t from);

/* A board: a little memory that all processes of a host see, whatever carries their data. There
 * each of them shows that it is alive. The first one makes it, as an arena; the others attach. */
int64_t spmd_board_bytes(int64_t processes);
/* After load. The board outlives the job. */
int spmd_job_board(spmd_job *job, spmd_arena *board);
/* Shows that this process is alive and looks whether the others are; blocks, in a thread of the
 * host language, until there is something to say. limit_ms: of silence; 0: any. */
int spmd_job_heed(spmd_job *job, int64_t limit_ms, spmd_notice *notice);
/* After SPMD_NOTICE_LOST, before the job is ended: the other hosts must know. */
void spmd_job_heed_last(spmd_job *job);
/* From now on others may leave: whoever heeds returns SPMD_NOTICE_END. */
void spmd_job_heed_end(spmd_job *job);

/* What the image's plan functions say for one rank of a job that need not be loaded: bytes of every
 * buffer, the at_load words, and SPMD_DIMS offsets and extents of every array. SPMD_RANGE where the
 * image has another number of any of them. */
typedef struct spmd_plan {
    int64_t buffers, at_loads, arrays;
    int64_t *bytes, *at_load, *offset, *extent;
} spmd_plan;
int spmd_job_probe(const spmd_job *job, int64_t rank, const spmd_plan *into);
/* Brings a region from one array to another one as an exchange does that casts what arrives, here
 * from unsigned integers of from_size bytes to those of into_size. Strides are bytes. */
void spmd_take_probe(char *into, const int64_t *into_stride, int64_t into_size, const char *from,
                     const int64_t *from_stride, int64_t from_size, const int64_t *extent,
                     int64_t dims);

/* Random numbers of consecutive elements, from `start` on: integers with all bits, or below span
 * (0 < span); uniform in [0, 1); of the normal distribution. They are those of spmd.random in an
 * image, to the bit. */
enum {
    SPMD_RANDOM_BITS,
    SPMD_RANDOM_BELOW,
    SPMD_RANDOM_UNIFORM_F32,
    SPMD_RANDOM_UNIFORM_F64,
    SPMD_RANDOM_NORMAL_F32,
    SPMD_RANDOM_NORMAL_F64,
};
void spmd_random_fill(void *into, int64_t n, int what, uint64_t seed, uint64_t stream,
                      uint64_t start, uint64_t span);
/* The places of random keys in ascending order. SPMD_NO_MEMORY without room for them. */
int spmd_random_order(int64_t *into, const uint64_t *keys, int64_t n);

/* What images call for sgemm (bytes: 4) or dgemm (bytes: 8): our own tiles where they are faster
 * than a BLAS, whose routine is given, and else that. */
void *spmd_gemm_beside(void *blas, int bytes);

/* Images and the libraries they call, by the dynamic linker. NULL: spmd_library_error says why. */
void *spmd_library_open(const char *path);
void *spmd_library_symbol(void *library, const char *name);
const char *spmd_library_error(void);
int spmd_library_close(void *library);
/* </cdef> */

#endif
