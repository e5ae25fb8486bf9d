/* Turns of a collective that is measured outside of images, by MPI or by hand: what goes into each
 * of them differs from the last one, and what must come out is known. spmd/bench/programs.py has
 * the same turns as programs. */
#include "measure.h"

#define PERIOD 7
#define TABLE (PERIOD * 16) /* elements that are filled or compared at once */
#define TURNS 5

/* Element j of what a rank gives in a turn is j % 7 + rank + turn % 5: small whole numbers, so that
 * sums are exact. Filling and comparing must be quick: where ranks share a core, who has finished
 * its turn keeps others from finishing theirs. */
static void pattern(float *table, int64_t at)
{
    for (int64_t j = 0; j < TABLE; j++)
        table[j] = (float)((at + j) % PERIOD);
}

static void fill(float *into, int64_t elements, float plus)
{
    float table[TABLE];
    int64_t j = 0;
    pattern(table, 0);
    for (; j + TABLE <= elements; j += TABLE)
        for (int64_t k = 0; k < TABLE; k++)
            into[j + k] = table[k] + plus;
    for (; j < elements; j++)
        into[j] = table[j % TABLE] + plus;
}

/* How many elements are not those from `at` on, times and plus something. */
static int64_t differing(const float *from, int64_t elements, int64_t at, float times, float plus)
{
    float table[TABLE];
    int64_t j = 0, wrong = 0;
    pattern(table, at);
    for (; j + TABLE <= elements; j += TABLE) {
        int32_t some = 0;
        for (int64_t k = 0; k < TABLE; k++)
            some += from[j + k] != times * table[k] + plus;
        wrong += some;
    }
    for (; j < elements; j++)
        wrong += from[j] != times * table[j % TABLE] + plus;
    return wrong;
}

/* Elements that a rank gives, and gets. */
int64_t spmd_turn_elements(const spmd_turns *t, bool gives)
{
    bool root = t->rank == 0;
    switch (t->kind) {
    case SPMD_MPI_BARRIER:
    case SPMD_FLOOR_FLAG:
    case SPMD_FLOOR_SWITCH:
        return 0;
    case SPMD_MPI_ALLTOALL:
        return t->count * t->ranks;
    case SPMD_MPI_ALLGATHER:
        return gives ? t->count : t->count * t->ranks;
    case SPMD_MPI_GATHER:
        return gives ? t->count : root ? t->count * t->ranks : 0;
    case SPMD_MPI_SCATTER:
        return !gives ? t->count : root ? t->count * t->ranks : 0;
    case SPMD_MPI_REDUCE_SCATTER:
        return gives ? t->count : t->count / t->ranks;
    case SPMD_MPI_BCAST:
        return !gives || root ? t->count : 0;
    case SPMD_MPI_REDUCE:
        return gives || root ? t->count : 0;
    case SPMD_MPI_EXSCAN:
        return gives || !root ? t->count : 0;
    default:
        return t->count;
    }
}

void spmd_turn_give(const spmd_turns *turns, int64_t turn)
{
    fill(turns->from, spmd_turn_elements(turns, true), (float)(turns->rank + turn % TURNS));
}

/* What this rank got: a piece of every rank, or one piece. */
int64_t spmd_turn_wrong(const spmd_turns *turns, int64_t turn)
{
    int64_t n = turns->ranks, me = turns->rank, count = turns->count, wrong = 0;
    int64_t gets = spmd_turn_elements(turns, false), members = n, at = 0, k = turn % TURNS;

    switch (turns->kind) {
    case SPMD_FLOOR_COPY:
        return differing(turns->into, gets, 0, 1, (float)(me + k));
    case SPMD_MPI_BCAST:
        return differing(turns->into, gets, 0, 1, (float)k);
    case SPMD_MPI_SENDRECV:
        return differing(turns->into, gets, 0, 1, (float)((me + n - 1) % n + k));
    case SPMD_MPI_SCATTER:
        return differing(turns->into, gets, me * count, 1, (float)k);
    case SPMD_MPI_ALLTOALL:
        at = me * count; /* fall through */
    case SPMD_MPI_ALLGATHER:
    case SPMD_MPI_GATHER:
        for (int64_t r = 0; r * count < gets; r++)
            wrong += differing(turns->into + r * count, count, at, 1, (float)(r + k));
        return wrong;
    case SPMD_MPI_REDUCE_SCATTER:
        at = me * gets;
        break;
    case SPMD_MPI_SCAN:
        members = me + 1;
        break;
    case SPMD_MPI_EXSCAN:
        members = me;
        break;
    default:
        break;
    }
    return differing(turns->into, gets, at, (float)members,
                     (float)(members * k + members * (members - 1) / 2));
}
