/* Feeds as feed.c and take.c share them: rings of batches, and where ranks are in them. The end of
 * parts.h, which includes this. */
#ifndef SPMD_FEED_H
#define SPMD_FEED_H

/* One batch of a ring: rows that lie in the host language's memory, and values that ranks send
 * back. `row` has three and more words for each piece: its first row, how many, and where each
 * field lies. */
typedef struct spmd_batch {
    _Alignas(SPMD_LINE) _Atomic int64_t number; /* of the batch that is there, + 1 */
    _Atomic int64_t readers; /* that have not left it yet */
    int64_t pieces, capacity;
    int64_t *row;
    _Atomic int64_t sent; /* of the batch whose values are all there, + 1 */
    int64_t sending, senders; /* to which batch values come, + 1; who has sent; both under `lock` */
    char *values;
} spmd_batch;

/* Batches that some hosted ranks take: those that hold the same rows. A process of whose ranks none
 * holds a row has one ring, of no rows, of which it hears how far the stream reaches. */
struct spmd_ring {
    struct spmd_job *job;
    struct spmd_fed *fed;
    int64_t begin, end;     /* rows of a batch */
    int64_t readers;        /* ranks that hold them */
    spmd_batch *batch;      /* fed->depth of them: number k lies in k % depth */
    int event;              /* written when all have left a batch, or sent to it */
    pthread_mutex_t lock;   /* of what is sent */
    _Atomic int64_t there;  /* so many batches the stream has at least */
    _Alignas(SPMD_LINE) _Atomic int64_t taken; /* batches that all readers have left */
    _Atomic int64_t tells;  /* `event` is written when so many more were taken */
    _Atomic int64_t jumped; /* readers that have left out what a checkpoint has taken */
    _Atomic int64_t last;   /* the stream has so many batches */
};

typedef struct spmd_shape {
    int64_t dims, size, row_bytes;
    int64_t extent[SPMD_DIMS];
} spmd_shape;

/* A feed in this process. */
typedef struct spmd_fed {
    char name[64];
    uint32_t number;
    int64_t depth, fields, values; /* values: fields that are sent back */
    spmd_shape *shape;             /* of the fields, then of the values */
    int64_t value_bytes;           /* of a row of all values */
    int64_t begins;                /* how often its stream was begun */
    int64_t rings;
    spmd_ring *ring;
    int64_t taken, from;           /* of the set that the run goes on from */
    int64_t set_taken, set_from;   /* of the set at hand */
} spmd_fed;

/* Where a rank is in the stream of a feed. Its own thread writes it; others look. */
typedef struct spmd_reader {
    spmd_ring *ring;
    int64_t began;        /* batches that were taken before this run */
    _Atomic int64_t sent; /* batches to which values were sent */
    int64_t held;         /* the batch that it looks at where that lies, + 1; 0: at none */
    bool idle;            /* it holds no row: it waits for no batch, and nobody for it */
    int64_t over;         /* how often it was told that there are no more */
    bool early;           /* some were taken in this run before its loop */
    _Atomic int64_t taken, waited, first, last; /* batches; nanoseconds; when it took */
} spmd_reader;

/* feed.c */
void spmd_ring_tell(spmd_ring *ring);
void spmd_feeds_free(spmd_job *job);
spmd_fed *spmd_job_fed(const spmd_job *job, int64_t feed);
void spmd_feeds_seen(spmd_job *job, const int64_t *reach, const int64_t *ends);
spmd_header *spmd_feeds_words(const spmd_job *job);

/* take.c */
int spmd_rank_take(spmd_rank *rank, uint32_t take);
int spmd_rank_more(spmd_rank *rank, uint32_t feed, int64_t *more);
int spmd_rank_send(spmd_rank *rank, uint32_t send);
bool spmd_job_starved(const spmd_job *job);
void spmd_readers_reset(spmd_hosted *me);
void spmd_readers_done(spmd_hosted *me);
void spmd_readers_loop(spmd_hosted *me);
void spmd_readers_resume(spmd_hosted *me);
void spmd_readers_keep(spmd_hosted *me);

#endif
