/* What the calls of ranks 0 and 1 take of their time, and what they leave to other work. */
#include "twin.h"

#include <stdlib.h>
#include <string.h>

enum { FEWEST = 100, ROUND_TRIPS = 10000, EXCHANGES = 100000 };

struct calls {
    const struct task *task;
    char *source, *into;
    int bytes, other;
    double long_ns; /* how long to compute */
    bool exchanges;
};

static struct calls prepare(const struct task *task) {
    struct calls c = {.task = task, .bytes = (int)task->bytes, .other = task->rank == 0};
    c.source = allocate(task->bytes, 1);
    c.into = allocate(task->bytes, 1);
    for (long at = 0; at < task->bytes; at++) {
        c.source[at] = (char)(at * 31 + at / 251);
    }
    return c;
}

static void finish(struct calls *c) {
    if (c->task->rank == 0 && memcmp(c->into, c->source, c->task->bytes)) {
        report_bad("the messages brought other elements");
    }
    free(c->source);
    free(c->into);
}

/* ---- Overhead: the first byte says whether more come. ---- */

static double exchange(struct calls *c, double gap, double *sending, double *receiving) {
    double begun = now_ns();
    MPI_Send(c->source, c->bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
    double sent = now_ns();
    while (now_ns() - sent < gap) {
        pause_briefly(1);
    }
    double asked = now_ns();
    MPI_Recv(c->into, c->bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    double got = now_ns();
    *sending = sent - begun;
    *receiving = got - asked;
    return *sending + *receiving;
}

static double of_clock(void) {
    double times[1001];
    for (int at = 0; at < 1001; at++) {
        double begun = now_ns();
        times[at] = now_ns() - begun;
    }
    return median(times, 1001);
}

static double without(double time, double clock) {
    return time > clock ? time - clock : 0;
}

static void measure_as_first(struct calls *c) {
    double *trips = allocate(ROUND_TRIPS, sizeof *trips);
    double *sends = allocate(EXCHANGES, sizeof *sends), *receives = allocate(EXCHANGES, sizeof *receives);
    double send, receive, begun = now_ns(), all = c->task->millis * 1e6;
    long done = 0;
    c->source[0] = 1;
    while (done < FEWEST || (done < ROUND_TRIPS && now_ns() < begun + all / 4)) {
        trips[done++] = exchange(c, 0, &send, &receive);
    }
    double trip = median(trips, done);
    begun = now_ns();
    for (done = 0; done < FEWEST || (done < EXCHANGES && now_ns() < begun + all); done++) {
        exchange(c, 2 * trip, &sends[done], &receives[done]);
    }
    c->source[0] = 0;
    exchange(c, 0, &send, &receive);
    double clock = of_clock();
    report_value("send", without(median(sends, done), clock));
    report_value("recv", without(median(receives, done), clock));
    report_value("one_way", trip / 2);
    free(trips);
    free(sends);
    free(receives);
}

void measure_overhead(const struct task *task) {
    struct calls c = prepare(task);
    if (task->rank == 0) {
        measure_as_first(&c);
    }
    for (bool more = task->rank == 1; more; more = c.into[0]) {
        MPI_Recv(c.into, c.bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(c.into, c.bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
    finish(&c);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* ---- Overlap: a message each way is under way while both ranks compute as long as it takes. ---- */

static void compute(double ns) {
    if (ns > 0) {
        volatile double sum = 0;
        for (double begun = now_ns(); now_ns() - begun < ns;) {
            for (int at = 1; at < 8; at++) {
                sum = sum + 1.0 / at;
            }
        }
    }
}

static void computations(void *what, long count) {
    struct calls *c = what;
    for (long at = 0; at < count && c->task->rank < 2; at++) {
        MPI_Request both[2];
        if (c->exchanges) {
            MPI_Irecv(c->into, c->bytes, MPI_BYTE, c->other, 1, MPI_COMM_WORLD, &both[0]);
            MPI_Isend(c->source, c->bytes, MPI_BYTE, c->other, 1, MPI_COMM_WORLD, &both[1]);
        }
        compute(c->long_ns);
        if (c->exchanges) {
            MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
        }
    }
}

/* The median of rank 0, at all ranks. */
static double part(struct calls *c, bool exchanges, double long_ns) {
    c->exchanges = exchanges;
    c->long_ns = long_ns;
    double ns = batches_median(c->task, computations, c, 1);
    MPI_Bcast(&ns, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return ns;
}

void measure_overlap_messages(const struct task *task) {
    struct task third = *task;
    third.millis = (task->millis + 2) / 3;
    struct calls c = prepare(&third);
    double communication = part(&c, true, 0);
    report_value("communication", communication / 1e9);
    report_value("compute", part(&c, false, communication) / 1e9);
    report_value("both", part(&c, true, communication) / 1e9);
    finish(&c);
}
