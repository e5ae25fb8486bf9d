/* Measuring tools beside the engine: collectives by MPI and by hand, and what a machine allows.
 *
 *   turns.c       what goes into measured collectives, and what must come out
 *   floor.c       what this machine allows: the same transfers in the least code
 *   machine.c     what that is made of on one core
 *   ../mpi.c      the same by MPI (the one file that calls it)
 */
#ifndef SPMD_MEASURE_H
#define SPMD_MEASURE_H

#include "../parts.h"

/* <cdef> */
/* What is measured beside our own collectives. */
enum spmd_collective {
    SPMD_MPI_BARRIER = 0,
    SPMD_MPI_BCAST = 1,
    SPMD_MPI_REDUCE = 2,
    SPMD_MPI_ALLREDUCE = 3,
    SPMD_MPI_REDUCE_SCATTER = 4, /* in equal blocks */
    SPMD_MPI_ALLGATHER = 5,
    SPMD_MPI_GATHER = 6,
    SPMD_MPI_SCATTER = 7,
    SPMD_MPI_ALLTOALL = 8,
    SPMD_MPI_SCAN = 9,
    SPMD_MPI_EXSCAN = 10,
    SPMD_MPI_SENDRECV = 11, /* to the next rank, from the one before */
    SPMD_FLOOR_COPY = 12,   /* what a rank gives into what it gets */
    SPMD_FLOOR_FLAG = 13,   /* round trips of a word between two ranks */
    SPMD_FLOOR_SWITCH = 14, /* from one thread to another on the same core */
};

typedef struct spmd_turns {
    int64_t kind;         /* enum spmd_collective */
    int64_t rank, ranks;
    int64_t count;        /* elements that a rank gives, of gathers and all-to-all per receiver */
    float *from;          /* room for what a rank gives */
    float *into;          /* and for what it gets */
} spmd_turns;

/* How many elements of what this rank got in a turn are not what it should have got. */
int64_t spmd_turn_wrong(const spmd_turns *turns, int64_t turn);

typedef struct spmd_mpi_turns {
    void *barrier, *collective; /* MPI's functions */
    int64_t handle_bytes, comm, type, op; /* as in spmd_mpi; float, and its sum */
    spmd_turns turns;
} spmd_mpi_turns;

/* So many turns, each of a barrier and the collective, of which only the latter is timed; what goes
 * in differs from turn to turn, and what comes out is checked. Returns how many elements were
 * wrong; -1: MPI failed. */
int64_t spmd_mpi_measure(const spmd_mpi_turns *turns, int64_t count, int64_t *nanoseconds);

/* How data moves in the least code that does it. */
enum spmd_floor_method {
    SPMD_FLOOR_EAGER = 0, /* given away into a room that the receivers read, who need not say so */
    SPMD_FLOOR_PULL = 1,  /* receivers take it from where it is, and say so */
    SPMD_FLOOR_PUSH = 2,  /* senders put it where it belongs; reductions are made in blocks */
};

enum spmd_floor_move {
    SPMD_FLOOR_LOOP = 0,   /* wide, ahead of itself */
    SPMD_FLOOR_SYSTEM = 1, /* memcpy */
    SPMD_FLOOR_STREAM = 2, /* past the caches */
};

/* The floor: the same turns by hand, over memory that the ranks share and nothing else. Each of the
 * ranks that a process brings has a thread of its own. */
typedef struct spmd_floor {
    spmd_arena *arena;     /* of spmd_floor_bytes, used for nothing else, by all with these turns */
    int64_t kind, ranks, count; /* as in spmd_turns */
    int64_t first, hosted; /* ranks of this process */
    int64_t crowded;       /* more ranks than cores: who waits gives its core away */
    int64_t method, move;  /* enum spmd_floor_method, and enum spmd_floor_move */
    int64_t active;        /* of copies: how many ranks copy at once, the first ones */
    int64_t partner;       /* of flags: the rank that answers the first one */
} spmd_floor;

int64_t spmd_floor_bytes(const spmd_floor *floor);
int spmd_floor_take(const spmd_floor *floor); /* all memory of the hosted ranks; a status */
/* 1: its kind can be done by its method and move. */
int spmd_floor_offers(const spmd_floor *floor);
/* As spmd_mpi_measure, for all hosted ranks: the times of the first one, then those of the next.
 * -1: no memory, or no thread. */
int64_t spmd_floor_measure(const spmd_floor *floor, int64_t count, int64_t *nanoseconds);
/* </cdef> */

/* turns.c */
void spmd_turn_give(const spmd_turns *turns, int64_t turn);
int64_t spmd_turn_elements(const spmd_turns *turns, bool gives);

/* machine.c */
/* The sum of so many sources goes to so many destinations, in one pass. prefix: destination k gets
 * the sum of the sources up to k, or below it. */
typedef struct spmd_part {
    float *const *into, *const *from;
    int64_t intos, froms;
    int64_t into_at, from_at, elements;
    enum { SPMD_PART_SUM, SPMD_PART_SCAN, SPMD_PART_EXSCAN } prefix;
} spmd_part;
void spmd_part_move(const spmd_part *part, int64_t move); /* enum spmd_floor_move */
bool spmd_part_streams(void); /* past the caches, whole lines of 16 elements */
/* Nanoseconds in which a core goes from one thread to another, one of two that sleep or yield
 * until it is their turn. -1: the system does not let them. */
int64_t spmd_switch_time(bool sleeps);

#endif
