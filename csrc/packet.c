/* Packets: data of the hosted ranks on its way between arenas. A rank starts all packets of a step,
 * then asks again and again whether they are done; none of it blocks.
 *
 * Two ranks see the exchanges that they share in the same order, so the tag names the two ranks and
 * nothing else: MPI does not let messages of one tag overtake each other. */
#include "parts.h"

#include <stdlib.h>

#define PIECE_BYTES ((int64_t)1 << 30) /* MPI counts in int */
#define HEADWAY 17 /* one message of so many waits for its receiver; prime: not always the same */

/* Tag 0 belongs to the watch. */
static int tag_of(const spmd_job *job, int64_t to, int64_t from)
{
    const int64_t *first = job->processes.first;
    int64_t receiver = to - first[spmd_rank_process(job, to)];
    int64_t sender = from - first[spmd_rank_process(job, from)];
    return (int)(1 + receiver * job->widest + sender);
}

/* Room that stays where it is until the packets under way are done; NULL: the rank has failed. */
char *spmd_packets_room(spmd_hosted *me, int64_t bytes)
{
    spmd_packets *packets = &me->packets;

    assert(packets->count == packets->complete && "room does not move under a packet");
    if (bytes > packets->room_bytes) {
        free(packets->room);
        packets->room = malloc((size_t)bytes);
        packets->room_bytes = packets->room ? bytes : 0;
    }
    if (bytes > packets->room_bytes)
        spmd_rank_fail(&me->record->rank, 69, "no memory for packets of %lld bytes",
                       (long long)bytes);
    return packets->room;
}

static bool piece_start(spmd_hosted *me, spmd_packet *packet)
{
    spmd_job *job = me->job;
    spmd_mpi_error error;
    int64_t left = packet->bytes - packet->done;
    int bytes = (int)(left < PIECE_BYTES ? left : PIECE_BYTES);
    char *at = packet->at + packet->done;
    /* A short message is gone as soon as it is sent: now and then wait until it was received, or a
     * fast rank would fill a slow one's memory. */
    bool synchronous = packet->send && me->packets.sent++ % HEADWAY == 0;
    pthread_mutex_lock(&job->mpi_lock);
    bool fine = packet->send ? spmd_mpi_send(job, synchronous, at, bytes, packet->process,
                                             packet->tag, &packet->request, &error)
                             : spmd_mpi_receive(job, at, bytes, packet->process, packet->tag,
                                                &packet->request, &error);
    pthread_mutex_unlock(&job->mpi_lock);
    packet->done += bytes;
    if (!fine)
        spmd_rank_fail(&me->record->rank, 75, "MPI: %s", error.text);
    return fine;
}

static void packet_start(spmd_hosted *me, bool send, int64_t rank, int64_t peer, char *at,
                         int64_t bytes)
{
    spmd_packets *packets = &me->packets;

    if (packets->count == packets->capacity) {
        int64_t capacity = packets->capacity ? 2 * packets->capacity : 8;
        spmd_packet *more = realloc(packets->packet, (size_t)capacity * sizeof *more);
        if (!more) {
            spmd_rank_fail(&me->record->rank, 69, "no memory for %lld packets",
                           (long long)capacity);
            return;
        }
        packets->packet = more;
        packets->capacity = capacity;
    }
    spmd_packet *packet = &packets->packet[packets->count];
    *packet = (spmd_packet){
        .at = at,
        .bytes = bytes,
        .process = (int)spmd_rank_process(me->job, peer),
        .tag = send ? tag_of(me->job, peer, rank) : tag_of(me->job, rank, peer),
        .send = send,
    };
    if (piece_start(me, packet))
        packets->count++;
}

void spmd_packet_send(spmd_hosted *me, int64_t to, const void *from, int64_t bytes)
{
    packet_start(me, true, me->record->rank.index, to, (char *)from, bytes);
}

void spmd_packet_receive(spmd_hosted *me, int64_t from, void *into, int64_t bytes)
{
    packet_start(me, false, me->record->rank.index, from, into, bytes);
}

/* All packets that were started have arrived or may be written over. */
bool spmd_packets_done(spmd_hosted *me)
{
    spmd_packets *packets = &me->packets;
    spmd_mpi_error error;

    while (packets->complete < packets->count) {
        spmd_packet *packet = &packets->packet[packets->complete];
        bool complete;
        pthread_mutex_lock(&me->job->mpi_lock);
        bool fine = spmd_mpi_test(me->job, &packet->request, &complete, &error);
        pthread_mutex_unlock(&me->job->mpi_lock);
        if (!fine) {
            spmd_rank_fail(&me->record->rank, 75, "MPI: %s", error.text);
            return false;
        }
        if (!complete)
            return false;
        if (packet->done < packet->bytes) {
            if (!piece_start(me, packet))
                return false;
        } else
            packets->complete++;
    }
    packets->count = packets->complete = 0;
    return true;
}

void spmd_packets_free(spmd_hosted *hosted)
{
    free(hosted->packets.packet);
    free(hosted->packets.room);
}
