/* The time that ranks 0 and 1 spend in calls, and the communication that overlaps with other work. */
#include "reference.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 50, READINGS = 2000, FEWEST = 2 * BATCH, ROUND_TRIPS = 10000, EXCHANGES = 100000 };

struct calls {
    const struct task *task;
    char *source, *into;
    int bytes, other;
    bool takes_part;
    double long_ns; /* how long to compute */
    int (*start)(struct calls *, MPI_Request *); /* starts the communication, if any; returns the number of requests */
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
        report_bad("the messages delivered wrong elements");
    }
    free(c->source);
    free(c->into);
}

/* ---- Overhead: the first byte tells rank 1 whether to continue. ---- */

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

/* The median of the means of batches. A single time is a whole number of the clock's steps, a mean is not. */
static double median_of_means(double *times, long count) {
    long batches = count / BATCH;
    for (long batch = 0; batch < batches; batch++) {
        double sum = 0;
        for (long at = 0; at < BATCH; at++) {
            sum += times[batch * BATCH + at];
        }
        times[batch] = sum / BATCH;
    }
    return median(times, batches);
}

/* The times of two successive readings of the clock, and the least step between two that differ. */
static double of_clock(double *step) {
    double times[READINGS];
    *step = 0;
    for (int at = 0; at < READINGS; at++) {
        double begun = now_ns();
        times[at] = now_ns() - begun;
        if (times[at] > 0 && (*step == 0 || times[at] < *step)) {
            *step = times[at];
        }
    }
    return median_of_means(times, READINGS);
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
    double step, clock = of_clock(&step);
    report_value("send", without(median_of_means(sends, done), clock));
    report_value("recv", without(median_of_means(receives, done), clock));
    report_value("clock_step", step);
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

/* ---- Overlap: communication is in flight while its ranks compute for as long as it takes. ---- */

static int start_exchange(struct calls *c, MPI_Request *requests) {
    MPI_Irecv(c->into, c->bytes, MPI_BYTE, c->other, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(c->source, c->bytes, MPI_BYTE, c->other, 1, MPI_COMM_WORLD, &requests[1]);
    return 2;
}

static int start_all_reduce(struct calls *c, MPI_Request *requests) {
    MPI_Iallreduce(MPI_IN_PLACE, c->into, c->bytes / 8, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD, requests);
    return 1;
}

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
    for (long at = 0; at < count && c->takes_part; at++) {
        MPI_Request requests[2];
        int started = c->start ? c->start(c, requests) : 0;
        compute(c->long_ns);
        MPI_Waitall(started, requests, MPI_STATUSES_IGNORE);
    }
}

/* Rank 0's median, at all ranks. */
static double part(struct calls *c, int (*start)(struct calls *, MPI_Request *), double long_ns) {
    c->start = start;
    c->long_ns = long_ns;
    double ns = batches_median(c->task, computations, c, 1);
    MPI_Bcast(&ns, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return ns;
}

static void hide(struct calls *c, int (*start)(struct calls *, MPI_Request *)) {
    double communication = part(c, start, 0);
    report_value("communication", communication / 1e9);
    report_value("compute", part(c, NULL, communication) / 1e9);
    report_value("both", part(c, start, communication) / 1e9);
}

static struct task third(const struct task *task) {
    struct task third = *task;
    third.millis = (task->millis + 2) / 3;
    return third;
}

/* A message in each direction. */
void measure_overlap_messages(const struct task *task) {
    struct task of_three = third(task);
    struct calls c = prepare(&of_three);
    c.takes_part = task->rank < 2;
    hide(&c, start_exchange);
    finish(&c);
}

/* The element-wise maximum over the ranks. */
void measure_overlap_collectives(const struct task *task) {
    struct task of_three = third(task);
    struct calls c = {.task = &of_three, .bytes = (int)task->bytes, .takes_part = true};
    double *data = allocate(task->bytes, 1);
    c.into = (char *)data;
    for (long at = 0; at < task->bytes / 8; at++) {
        data[at] = (double)(at % 1000 + task->rank);
    }
    hide(&c, start_all_reduce);
    for (long at = 0; at < task->bytes / 8; at++) {
        if (data[at] != (double)(at % 1000 + task->ranks - 1)) {
            report_bad("element %ld of all_reduce is %g", at, data[at]);
            break;
        }
    }
    free(data);
}
