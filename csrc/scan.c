/* Prefixes over the members of several arenas: every member folds the operands of the members that
 * it reads, from the first to the last, one after the other. So the bits of a result depend on the
 * mesh alone, not on who hosts whom. */
#include "parts.h"

#include <string.h>

#define AT_ONCE 16 /* members whose packets a rank has room for */

/* The first operand is copied, the others are combined with what is there. packed: it has come in a
 * packet; NULL: it lies in this arena. */
static void operand_take(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                         int64_t member, const char *packed)
{
    spmd_box from, into;
    exchange->pull(rank, member, &from, &into);
    if (!spmd_member_reads(exchange, exchange->position, member))
        return;
    if (!packed)
        packed = spmd_job_memory(me->job, spmd_member_rank(exchange, member)) + from.offset;
    char *mine = rank->memory + into.offset;
    if (member == 0)
        memcpy(mine, packed, (size_t)(spmd_box_elements(&into) * exchange->size));
    else
        spmd_fold_two(exchange->fold, mine, mine, packed, spmd_box_elements(&into));
}

static int64_t operand_bytes(const spmd_rank *rank, const spmd_exchange *exchange, int64_t member)
{
    spmd_box from, into;
    exchange->pull(rank, member, &from, &into);
    bool reads = spmd_member_reads(exchange, exchange->position, member);
    return reads ? spmd_box_elements(&into) * exchange->size : 0;
}

/* My operand for the members of other arenas that come after me. */
static void operand_send(spmd_hosted *me, const spmd_rank *rank, const spmd_exchange *exchange)
{
    for (int64_t member = exchange->position + 1; member < exchange->members; member++) {
        spmd_box from;
        if (!spmd_member_far(me, exchange, member))
            continue;
        exchange->send(rank, member, &from);
        int64_t bytes = spmd_box_elements(&from) * exchange->size;
        if (bytes)
            spmd_packet_send(me, spmd_member_rank(exchange, member), rank->memory + from.offset,
                             bytes);
    }
}

/* Starts a round: the packets of members first … last - 1 of other arenas, side by side. */
static bool round_start(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                        int64_t first, int64_t last)
{
    int64_t bytes = 0;
    for (int64_t member = first; member < last; member++)
        if (spmd_member_far(me, exchange, member))
            bytes += operand_bytes(rank, exchange, member);
    char *room = bytes ? spmd_packets_room(me, bytes) : NULL;
    if (bytes && !room)
        return false;
    for (int64_t member = first; bytes && member < last; member++)
        if (spmd_member_far(me, exchange, member)) {
            int64_t length = operand_bytes(rank, exchange, member);
            spmd_packet_receive(me, spmd_member_rank(exchange, member), room, length);
            room += length;
        }
    if (first <= exchange->position && exchange->position < last)
        operand_send(me, rank, exchange);
    return true;
}

static void round_finish(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                         int64_t first, int64_t last)
{
    const char *room = me->packets.room;
    for (int64_t member = first; member < last; member++) {
        bool far = spmd_member_far(me, exchange, member);
        int64_t bytes = far ? operand_bytes(rank, exchange, member) : 0;
        operand_take(me, rank, exchange, member, bytes ? room : NULL);
        if (bytes)
            room += bytes;
    }
}

/* Members take part in the rounds up to their own, in which they send. Nobody waits for a round
 * that comes later than the one it is in, so that the least of them always gets on. */
static bool rounds(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    for (;;) {
        int64_t first = (int64_t)(rank->stage - SPMD_BETWEEN) * AT_ONCE;
        int64_t last = first + AT_ONCE <= exchange->position ? first + AT_ONCE
                                                             : exchange->position + 1;
        if (first > exchange->position)
            return true;
        if (!me->packets.under_way) {
            me->packets.under_way = true;
            if (!round_start(me, rank, exchange, first, last))
                return false;
        }
        if (!spmd_packets_done(me))
            return false;
        me->packets.under_way = false;
        round_finish(me, rank, exchange, first, last);
        rank->stage++;
    }
}

enum { SCAN_READY = SPMD_BEGUN + 1, SCAN_TAKEN = SPMD_BETWEEN - 1 };

int spmd_scan(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (rank->stage == SPMD_BEGUN) {
        spmd_team_arrive(me, exchange);
        rank->stage = SCAN_READY;
    }
    if (rank->stage == SCAN_READY) {
        if (!spmd_team_passed(me, exchange))
            return 0;
        rank->stage = SPMD_BETWEEN;
    }
    if (rank->stage >= SPMD_BETWEEN) {
        if (!rounds(me, rank, exchange))
            return 0;
        spmd_team_arrive(me, exchange);
        rank->stage = SCAN_TAKEN;
    }
    return spmd_team_passed(me, exchange);
}
