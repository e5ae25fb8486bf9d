/* The interface between an image and the engine: the one header that both include.
 *
 * An image is machine code that is compiled once, knows no number of ranks, and reads nothing but
 * the spmd_rank it is handed. The engine owns memory, threads and exchange. Neither calls the other
 * except through the two tables below. Change anything here: raise SPMD_INTERFACE.
 */
#ifndef SPMD_IMAGE_H
#define SPMD_IMAGE_H

#include <stdint.h>

#define SPMD_INTERFACE 18
#define SPMD_AXES 3 /* axes of a mesh, at most */
#define SPMD_DIMS 8 /* dims of an array, at most */

typedef struct spmd_rank spmd_rank;

/* What all ranks of a job share: bound at launch, constant while the program runs. */
typedef struct spmd_world {
    int64_t ranks;
    int64_t size[SPMD_AXES];  /* ranks along each mesh axis; 1 beyond the last axis */
    const int64_t *scalar;    /* run-time scalars; a double is stored by its bits */
    const int64_t *buffer;    /* where each buffer is in a rank's memory as a run begins, bytes */
    const uint8_t *given;     /* per input: 1 when it was read, 0 when its default is computed, or
                               * what needs it is left out; then per output: 1 when it is wanted */
    const char *constants;    /* section .spmd.constants of the image, where nobody writes; NULL:
                               * the image has none */
} spmd_world;

/* A strided region of one rank's memory. Offsets and strides are bytes, extents elements. */
typedef struct spmd_box {
    int64_t offset; /* of the first element, from the rank's memory */
    int32_t dims;
    int64_t extent[SPMD_DIMS];
    int64_t stride[SPMD_DIMS];
} spmd_box;

/* What an exchange does. The engine chooses how. */
enum spmd_exchange_kind {
    SPMD_PERMUTE = 0,        /* pull one box from `source`; `dest` pulls one from me */
    SPMD_BARRIER = 1,        /* arrive; move nothing */
    SPMD_PULL = 2,           /* pull one box from every member that I read */
    SPMD_REDUCE = 3,         /* fold the contiguous boxes of the members that I read into mine */
    SPMD_REDUCE_SCATTER = 4, /* fold my block of every member's box into mine */
};

/* Which members a member reads. Nobody waits for whom it does not read. */
enum spmd_flow {
    SPMD_ALL = 0,       /* all of them */
    SPMD_FROM_ROOT = 1, /* the root */
    SPMD_TO_ROOT = 2,   /* the root reads all, nobody else reads anything */
    SPMD_UP_TO = 3,     /* those up to itself */
    SPMD_BEFORE = 4,    /* those before itself */
    SPMD_NEAR = 5,      /* those in a range of positions along each axis of the group */
};

#define SPMD_NONE (-1)    /* sends to nobody, receives from nobody */
#define SPMD_UNKNOWN (-2) /* the source was not solved at build: found through the route slot */

/* A fold: from the first `from` on, every further one is combined with what there is, in their
 * order; wherever a term has an `into`, what there is then is written there. */
typedef struct spmd_term {
    const void *from; /* n elements; NULL: nothing more to combine; never of the first term */
    void *into;       /* n elements; NULL: not wanted. Overlaps no `from` of a later term */
} spmd_term;

/* Positions along one axis of a group, which goes on beyond its ends: as begin, end taken modulo
 * its members. None where it ends before it begins. */
typedef struct spmd_range {
    int64_t begin, end;
} spmd_range;

typedef void (*spmd_fold)(const spmd_term *term, int64_t terms, int64_t n);

/* A part of what an exchange brings: rows of n elements each, which lie one after the other, and
 * where a copy would go. Strides are from row to row; they, and `into`, which counts from the
 * rank's memory on, are bytes. */
typedef struct spmd_piece {
    const void *from;
    int64_t from_stride, into, into_stride;
    int64_t rows, n;
} spmd_piece;

/* Filled by generated code each time an exchange begins; it stays until the exchange is complete.
 * Members are the ranks along some mesh axes taken as one, row-major; a group is a set of them. */
typedef struct spmd_exchange {
    uint32_t site; /* which exchange of the program: row of the manifest's table */
    uint32_t kind;
    uint32_t size; /* bytes of one element that is exchanged */
    uint32_t into_size; /* bytes of one element that `take` writes */
    uint32_t flow; /* not of SPMD_PERMUTE */
    uint32_t differs; /* 1: what I send is another box for every member; 0: the same for all */
    uint32_t constant; /* 1: the boxes of every pair are as long each time at this site */
    int64_t wraps; /* SPMD_PULL: boxes that a pair of members has, more than 1 where dims go around;
                    * number k is asked for as member + k * members. Else 1 */
    int64_t root;    /* a member's position, where the flow has one */
    int64_t members, position; /* how many, and which I am */
    int64_t first;             /* index of member 0 */
    int64_t count[SPMD_AXES], stride[SPMD_AXES]; /* members along an axis, their index stride */
    int64_t source, dest; /* SPMD_PERMUTE: member positions, or SPMD_NONE, SPMD_UNKNOWN */
    /* What I pull from a member: `from` in its memory, `into` in mine; both have the same extents.
     * Strides are bytes; elements of `into` have into_size of them where there is a `take`.
     * The innermost stride of a box that is folded is the element's size. A fold's boxes are those
     * that it has where everybody reads everybody. */
    void (*pull)(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into);
    /* The box in my memory that this member pulls. */
    void (*send)(const spmd_rank *rank, int64_t member, spmd_box *from);
    /* The same, and where it goes in the member's memory; both have the same extents. NULL: what
     * I send may only be pulled. */
    void (*give)(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into);
    /* SPMD_PULL: what is done with each part of what I pull, once, instead of a copy. NULL: it is
     * copied. What it writes, nobody pulls; what I send is never given. */
    void (*take)(const spmd_rank *rank, const spmd_piece *piece);
    spmd_fold fold;
    /* SPMD_NEAR: whom I read, and who reads me, along each axis; the same every time at a site. A
     * member is among my readers if and only if I am among its sources. */
    spmd_range sources[SPMD_AXES], readers[SPMD_AXES];
} spmd_exchange;

/* What the engine offers to an image. */
typedef struct spmd_engine {
    uint32_t interface_version;
    /* Advances rank->exchange. 1: complete. 0: must wait; call again. rank->stage is 0 at first. */
    int (*exchange)(spmd_rank *rank);
    /* One line of text from the program, in order, while it runs. */
    void (*print)(spmd_rank *rank, const char *text, int64_t length);
    /* 1: it is time again for text that is not wanted each time. */
    int (*due)(spmd_rank *rank);
    /* Ends the run of all ranks with this text; what the program expects does not hold. The rank
     * returns from step() and is not called again. */
    void (*fail)(spmd_rank *rank, uint32_t operation, const char *text, int64_t length);
    /* Library routines by the manifest's logical number. */
    void *const *library;
    /* What this machine can: 0 the image's target, 1 AVX2, 2 AVX-512. */
    uint32_t vectors;
    /* Sets rank->operation, and the time. NULL: nobody wants to know when. */
    void (*enter)(spmd_rank *rank, uint32_t operation);
    /* A turn of an outermost loop begins; counter: NULL where it has none. Returns an
     * spmd_point_result. number SPMD_NO_TURN: the loop of the checkpoint that the rank has gone on
     * from ends before that one's turn, and so does the run. */
    int (*point)(spmd_rank *rank, uint32_t number, int64_t *counter);
    /* 1: the fields of the feed's next batch lie in the buffers of this take: of each the part that
     * shard() says, its rows after the batch's end zeros. 0: must wait; call again. Where there is
     * no next batch, the engine ends the run of all ranks, as fail() does. */
    int (*take)(spmd_rank *rank, uint32_t take);
    /* 1: known; *more is 1 where the feed has a next batch, else 0: the same on all ranks that have
     * taken equally many. 0: must wait; call again. */
    int (*more)(spmd_rank *rank, uint32_t feed, int64_t *more);
    /* Hands the arrays of this send to whoever made the batch that was taken last. 1: they may be
     * written again. 0: must wait; call again. */
    int (*send)(spmd_rank *rank, uint32_t send);
    /* The loop that a save stands in begins, or else a turn of it. */
    void (*turn)(spmd_rank *rank, uint32_t save, int begins);
    /* Hands over the array of this save, if it is wanted in this turn. 1: it may be written again.
     * 0: must wait; call again. */
    int (*save)(spmd_rank *rank, uint32_t save);
} spmd_engine;

/* One rank: everything that generated code may read, and where it resumes. */
struct spmd_rank {
    int64_t index;
    int64_t coord[SPMD_AXES];
    char *memory; /* this rank's buffers */
    /* Where each buffer begins now, bytes; at first as the world says. Buffers of one size may
     * change places (spmd_swap). Boxes in another rank's memory are computed by the table of the
     * rank that asks: whoever takes part in an exchange has its buffers in the same places. */
    int64_t *buffer;
    const spmd_world *world;
    const spmd_engine *engine;
    int64_t *at_load; /* extents, offsets and peers, evaluated once */
    int64_t *counter; /* loop counters and bounds */
    uint32_t pc;      /* where step() resumes; 0 at first */
    uint32_t stage;   /* where the engine's exchange resumes */
    uint32_t operation;  /* row of the manifest's operation table: for the watchdog and timelines */
    uint64_t superstep;  /* exchanges completed */
    spmd_exchange exchange;
    void *engine_data; /* the engine's own record of this rank */
};

/* An operation begins. */
static inline void spmd_enter(spmd_rank *rank, uint32_t operation)
{
    if (rank->engine->enter)
        rank->engine->enter(rank, operation);
    else
        rank->operation = operation;
}

/* Two buffers change places, and so what is in them. */
static inline void spmd_swap(spmd_rank *rank, int a, int b)
{
    int64_t at = rank->buffer[a];
    rank->buffer[a] = rank->buffer[b];
    rank->buffer[b] = at;
}

#define SPMD_NO_TURN UINT32_MAX

enum spmd_point_result {
    SPMD_HELD = 0,  /* call again */
    SPMD_GO_ON = 1,
    SPMD_AGAIN = 2, /* what is carried, and the counter, are those of a checkpoint: whether there is
                     * another turn is asked again */
};

enum spmd_step_result { SPMD_DONE = 0, SPMD_WAITS = 1 };

/* What may be done with a field of a batch instead of a copy into its buffer: the buffer may begin
 * where the field lies, until the feed's next batch is taken, by any take, or the rank is done.
 * Where its place is needed before, the engine copies it then. */
enum spmd_lie {
    SPMD_LIE_COPIED = 0,   /* nothing */
    SPMD_LIE_ALONE = 1,    /* where there is one rank: others would look for it in its buffer */
    SPMD_LIE_IN_PLACE = 2, /* on all ranks */
};

/* What an image offers to the engine; exported as `spmd_image_table`. Arrays are numbered inputs
 * first, then outputs, then what each point carries, then the fields of each take, then those of
 * each send, then that of each save. A take is a place in the program where a batch of a feed is
 * taken. All takes of a feed have equal fields, in the same order; dim 0 of each is the batch. */
typedef struct spmd_image {
    uint32_t interface_version;
    uint32_t axes, scalars, inputs, outputs, buffers, at_load, counters, sites, points;
    uint32_t feeds, takes, sends, saves, overlays;
    /* Overlays are numbered from 1 on, outer ones first. Buffers of one begin where those of the
     * one around it end (0: where those end that lie in none), and so lie where other overlays
     * have theirs: a rank is in one arm of a branch at a time. By buffer: its overlay, or 0; then
     * by overlay: the one around it, or 0. NULL: there is none. */
    const uint32_t *buffer_overlay, *overlay_around;
    /* By buffer, 1: a rank touches parts of it only, so its pages are taken as it touches them;
     * 0: they are taken at load. NULL: there is none such. */
    const uint32_t *buffer_sparse;
    const uint32_t *array_buffer; /* the buffer of each array */
    const uint32_t *array_dims;
    const uint32_t *array_size;  /* bytes of an element; NULL without points, takes and sends */
    const uint32_t *point_first; /* array of each point; behind the last one, the end. NULL: none */
    const uint32_t *take_feed, *take_first; /* of each take: its feed; as of each point */
    const uint32_t *take_lies; /* of each field of the takes, an spmd_lie. NULL: all are copied */
    const uint32_t *send_feed, *send_first; /* of each send */
    /* Bytes of each buffer: the most any rank needs, for these sizes and scalars. */
    void (*reserve)(const spmd_world *world, int64_t *bytes);
    /* Fills rank->at_load. */
    void (*load)(spmd_rank *rank);
    /* Where this rank's part of an array lies in the global array. */
    void (*shard)(const spmd_rank *rank, uint32_t array, int64_t *offset, int64_t *extent);
    /* Where its part of an array begins in memory, per dim, and the extents of that; it leaves them
     * alone where nothing stands around the part. NULL: nothing ever does. */
    void (*room)(const spmd_rank *rank, uint32_t array, int64_t *before, int64_t *around);
    /* Runs until the rank must wait (SPMD_WAITS: call again) or has finished (SPMD_DONE). */
    int (*step)(spmd_rank *rank);
} spmd_image;

/* The index words, in section .spmd.index: all that differs between two local programs of a job.
 * check is the low 63 bits of FNV-1a (64 bit) over the bytes of all other words, in order. */
typedef struct spmd_index_words {
    int64_t magic; /* SPMD_INDEX_MAGIC */
    int64_t check;
    int64_t patched;            /* 0 in the image file, 1 in a local program */
    int64_t first, count;       /* the ranks that this process hosts */
    int64_t size[SPMD_AXES];    /* of each mesh axis */
    int64_t scalars;            /* how many follow */
    int64_t scalar[];
} spmd_index_words;

/* Inputs, outputs, what points carry, fields of takes and of sends, saves. */
static inline uint32_t spmd_image_arrays(const spmd_image *image)
{
    if (image->sends)
        return image->send_first[image->sends] + image->saves;
    if (image->takes)
        return image->take_first[image->takes] + image->saves;
    if (image->points)
        return image->point_first[image->points] + image->saves;
    return image->inputs + image->outputs + image->saves;
}

#define SPMD_INDEX_MAGIC 0x78646e69646d7073 /* "spmdindx" */

#endif
