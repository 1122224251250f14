/* Messages between ranks 0 and 1: latency, bandwidth and rate. */
#include "reference.h"

#include <stdlib.h>
#include <string.h>

enum { IN_A_ROW = 64, UNDER_WAY = 4 << 20 /* the most bytes in flight, unless one message has more */ };

struct messages {
    const struct task *task;
    char *source, *into;
    int bytes, other;
    int pairs, row; /* of message_rate: number of pairs, and messages in flight */
};

static void there_and_back(struct messages *m) {
    if (m->task->rank == 0) {
        MPI_Send(m->source, m->bytes, MPI_BYTE, m->other, 1, MPI_COMM_WORLD);
        MPI_Recv(m->into, m->bytes, MPI_BYTE, m->other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (m->task->rank == 1) {
        MPI_Recv(m->into, m->bytes, MPI_BYTE, m->other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(m->into, m->bytes, MPI_BYTE, m->other, 1, MPI_COMM_WORLD);
    }
}

static void round_trips(void *what, long count) {
    for (long at = 0; at < count; at += 2) {
        there_and_back(what);
    }
}

static void in_a_row(void *what, long count) {
    struct messages *m = what;
    char answer = 1;
    for (long at = 0; at < count; at += IN_A_ROW) {
        if (m->task->rank == 0) {
            for (int nth = 0; nth < IN_A_ROW; nth++) {
                MPI_Send(m->source, m->bytes, MPI_BYTE, m->other, 1, MPI_COMM_WORLD);
            }
            MPI_Recv(&answer, 1, MPI_BYTE, m->other, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (m->task->rank == 1) {
            for (int nth = 0; nth < IN_A_ROW; nth++) {
                MPI_Recv(m->into, m->bytes, MPI_BYTE, m->other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            MPI_Send(&answer, 1, MPI_BYTE, m->other, 2, MPI_COMM_WORLD);
        }
    }
}

static void both_ways(void *what, long count) {
    struct messages *m = what;
    for (long at = 0; at < count && m->task->rank < 2; at++) {
        MPI_Sendrecv(m->source, m->bytes, MPI_BYTE, m->other, 1, m->into, m->bytes, MPI_BYTE, m->other, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

/* Messages in flight at the same time have separate buffers. */
static void under_way(void *what, long count) {
    struct messages *m = what;
    int me = m->task->rank;
    MPI_Request all[IN_A_ROW];
    char answer = 1;
    for (long at = 0; at < count && me < 2 * m->pairs; at += m->row) {
        if (me < m->pairs) {
            for (int nth = 0; nth < m->row; nth++) {
                MPI_Isend(m->source, m->bytes, MPI_BYTE, me + m->pairs, 1, MPI_COMM_WORLD, &all[nth]);
            }
            MPI_Waitall(m->row, all, MPI_STATUSES_IGNORE);
            MPI_Recv(&answer, 1, MPI_BYTE, me + m->pairs, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int nth = 0; nth < m->row; nth++) {
                MPI_Irecv(m->into + (size_t)nth * m->bytes, m->bytes, MPI_BYTE, me - m->pairs, 1, MPI_COMM_WORLD, &all[nth]);
            }
            MPI_Waitall(m->row, all, MPI_STATUSES_IGNORE);
            MPI_Send(&answer, 1, MPI_BYTE, me - m->pairs, 2, MPI_COMM_WORLD);
        }
    }
}

static struct messages prepare(const struct task *task, int row) {
    struct messages m = {.task = task, .bytes = (int)task->bytes, .other = task->rank == 0, .row = row};
    m.pairs = (int)task->ranks / 2;
    m.source = allocate(task->bytes, 1);
    m.into = allocate(task->bytes * row, 1);
    for (long at = 0; at < task->bytes; at++) {
        m.source[at] = (char)(at * 31 + at / 251);
    }
    return m;
}

static void finish(struct messages *m) {
    memset(m->into, 0, m->bytes);
    there_and_back(m);
    if (m->task->rank == 0 && memcmp(m->into, m->source, m->bytes)) {
        report_bad("the messages delivered wrong elements");
    }
    free(m->source);
    free(m->into);
}

static void measure(const struct task *task, rounds *run, long unit) {
    struct messages m = prepare(task, 1);
    batches(task, run, &m, unit, TOGETHER);
    finish(&m);
}

/* Gaps: before each send a rank computes for a random time, which is then subtracted, as in the worker's gaps.rs. */
enum { TABLE = 4096, TRIPS = 32, BATCHES = 11, SPEED_TURNS = 20000, SPEEDS = 5 };
static const double LONGEST_NS = 400;

struct gaps {
    struct messages *m;
    uint32_t turns[TABLE]; /* the gaps of this rank before its sends */
    long next;             /* the index of the next batch's first gap */
    double sample;         /* the median of the latest batches */
};

/* Each turn waits for the previous one's store, and the following code for the last store, as its value is unpredictable. */
__attribute__((noinline)) static void compute(uint32_t turns) {
    while (turns > 0) {
        turns--;
        __asm__ volatile("" : "+m"(turns));
    }
}

static double turns_in_a_ns(void) {
    double speeds[SPEEDS];
    for (int at = 0; at < SPEEDS; at++) {
        double begun = now_ns();
        compute(SPEED_TURNS);
        speeds[at] = SPEED_TURNS / (now_ns() - begun);
    }
    return median(speeds, SPEEDS);
}

static void choose_gaps(struct gaps *g) {
    unsigned short seed[3] = {(unsigned short)(1 + g->m->task->rank)};
    double turns = LONGEST_NS * turns_in_a_ns();
    for (int at = 0; at < TABLE; at++) {
        g->turns[at] = (uint32_t)(erand48(seed) * turns);
    }
}

static void there_and_back_with_gaps(struct messages *m, uint32_t turns) {
    if (m->task->rank == 0) {
        compute(turns);
        MPI_Send(m->source, m->bytes, MPI_BYTE, m->other, 1, MPI_COMM_WORLD);
        MPI_Recv(m->into, m->bytes, MPI_BYTE, m->other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (m->task->rank == 1) {
        MPI_Recv(m->into, m->bytes, MPI_BYTE, m->other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        compute(turns);
        MPI_Send(m->into, m->bytes, MPI_BYTE, m->other, 1, MPI_COMM_WORLD);
    }
}

static double time_of_mine(const uint32_t *turns) {
    double begun = now_ns();
    for (int at = 0; at < TRIPS; at++) {
        compute(turns[at]);
    }
    return now_ns() - begun;
}

/* At rank 0, the time that these gaps take at both ranks, one after the other. As in round trips, one rank computes while
   the other waits for its message, which slows a shared core. */
static double time_of_gaps(const struct messages *m, const uint32_t *turns) {
    double mine = 0, others = 0;
    if (m->task->rank == 0) {
        mine = time_of_mine(turns);
        MPI_Send(&mine, 1, MPI_DOUBLE, m->other, 2, MPI_COMM_WORLD);
        MPI_Recv(&others, 1, MPI_DOUBLE, m->other, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (m->task->rank == 1) {
        MPI_Recv(&others, 1, MPI_DOUBLE, m->other, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        mine = time_of_mine(turns);
        MPI_Send(&mine, 1, MPI_DOUBLE, m->other, 2, MPI_COMM_WORLD);
    }
    return mine + others;
}

static double batch_with_gaps(struct gaps *g) {
    const uint32_t *turns = g->turns + g->next;
    g->next = (g->next + TRIPS) % TABLE;
    double begun = now_ns();
    for (int at = 0; at < TRIPS; at++) {
        there_and_back_with_gaps(g->m, turns[at]);
    }
    double took = now_ns() - begun;
    return (took - time_of_gaps(g->m, turns)) / (2 * TRIPS);
}

static void round_trips_with_gaps(void *what, long count) {
    struct gaps *g = what;
    long batches = count / (2 * TRIPS);
    double *all = allocate(batches, sizeof *all);
    for (long at = 0; at < batches; at++) {
        all[at] = batch_with_gaps(g);
    }
    g->sample = median(all, batches);
    free(all);
}

static void report_with_gaps(double ns, void *to) {
    const struct gaps *g = to;
    (void)ns; /* includes the gaps */
    if (g->sample > 0) {
        report_sample(g->sample);
    } else if (g->m->task->rank == 0) {
        report_bad("gaps took as long as the round trips that contain them");
    }
}

static void measure_with_gaps(const struct task *task) {
    struct messages m = prepare(task, 1);
    struct gaps *g = allocate(1, sizeof *g);
    g->m = &m;
    choose_gaps(g);
    batches_to(task, round_trips_with_gaps, g, 2L * TRIPS * BATCHES, TOGETHER, report_with_gaps, g);
    free(g);
    finish(&m);
}

void measure_pingpong(const struct task *task) {
    if (task->sync == GAPS) {
        measure_with_gaps(task);
    } else {
        measure(task, round_trips, 2);
    }
}

void measure_stream(const struct task *task) {
    measure(task, in_a_row, IN_A_ROW);
}

void measure_bidirectional(const struct task *task) {
    measure(task, both_ways, 1);
}

static void report_by(double ns, void *pairs) {
    report_sample(ns / *(int *)pairs);
}

void measure_message_rate(const struct task *task) {
    long row = UNDER_WAY / task->bytes;
    struct messages m = prepare(task, (int)(row < 1 ? 1 : row > IN_A_ROW ? IN_A_ROW : row));
    batches_to(task, under_way, &m, m.row, TOGETHER, report_by, &m.pairs);
    finish(&m);
}
