/* Turns of a collective that is measured outside of images, by MPI or by hand: what goes into each
 * of them differs from the last one, and what must come out is known. spmd/bench_programs.py has
 * the same turns as programs. */
#include "parts.h"

/* Element j of what a rank gives in a turn; small whole numbers, so that sums are exact. */
static float given(int64_t rank, int64_t turn, int64_t j)
{
    return (float)(j % 7 + rank + turn % 5);
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

/* Element j of what this rank gets in a turn. */
static float gotten(const spmd_turns *t, int64_t turn, int64_t j)
{
    int64_t n = t->ranks, me = t->rank, members = n, own = j;
    switch (t->kind) {
    case SPMD_FLOOR_COPY:
        return given(me, turn, j);
    case SPMD_MPI_BCAST:
        return given(0, turn, j);
    case SPMD_MPI_SENDRECV:
        return given((me + n - 1) % n, turn, j);
    case SPMD_MPI_ALLGATHER:
    case SPMD_MPI_GATHER:
        return given(j / t->count, turn, j % t->count);
    case SPMD_MPI_SCATTER:
        return given(0, turn, me * t->count + j);
    case SPMD_MPI_ALLTOALL:
        return given(j / t->count, turn, me * t->count + j % t->count);
    case SPMD_MPI_REDUCE_SCATTER:
        own = me * (t->count / n) + j;
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
    return (float)(members * (own % 7 + turn % 5) + members * (members - 1) / 2);
}

void spmd_turn_give(const spmd_turns *turns, int64_t turn)
{
    int64_t gives = spmd_turn_elements(turns, true);
    for (int64_t j = 0; j < gives; j++)
        turns->from[j] = given(turns->rank, turn, j);
}

int64_t spmd_turn_wrong(const spmd_turns *turns, int64_t turn)
{
    int64_t gets = spmd_turn_elements(turns, false), wrong = 0;
    for (int64_t j = 0; j < gets; j++)
        wrong += turns->into[j] != gotten(turns, turn, j);
    return wrong;
}
