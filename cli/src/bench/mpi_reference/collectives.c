/* Collectives of all ranks, in place where the worker's are. */
#include "reference.h"

#include <stdlib.h>

struct collective {
    const struct task *task;
    double *data, *into;
    int count;
};

static double element(int rank, long at) {
    return (double)((rank + 1) * (at % 1000 + 1));
}

static double sum(int ranks, long at) {
    double all = 0;
    for (int rank = 0; rank < ranks; rank++) {
        all += element(rank, at);
    }
    return all;
}

/* ---- The calls. ---- */

static void broadcasts(void *what, long count) {
    struct collective *c = what;
    for (long at = 0; at < count; at++) {
        MPI_Bcast(c->data, c->count, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    }
}

static void reduces(void *what, long count) {
    struct collective *c = what;
    for (long at = 0; at < count; at++) {
        if (c->task->rank == 0) {
            MPI_Reduce(MPI_IN_PLACE, c->data, c->count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        } else {
            MPI_Reduce(c->data, NULL, c->count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        }
    }
}

static void all_reduces(void *what, long count) {
    struct collective *c = what;
    for (long at = 0; at < count; at++) {
        MPI_Allreduce(MPI_IN_PLACE, c->data, c->count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
}

static void scans(void *what, long count) {
    struct collective *c = what;
    for (long at = 0; at < count; at++) {
        MPI_Scan(MPI_IN_PLACE, c->data, c->count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
}

static void all_gathers(void *what, long count) {
    struct collective *c = what;
    for (long at = 0; at < count; at++) {
        MPI_Allgather(c->data, c->count, MPI_DOUBLE, c->into, c->count, MPI_DOUBLE, MPI_COMM_WORLD);
    }
}

static void all_to_alls(void *what, long count) {
    struct collective *c = what;
    for (long at = 0; at < count; at++) {
        MPI_Alltoall(c->data, c->count, MPI_DOUBLE, c->into, c->count, MPI_DOUBLE, MPI_COMM_WORLD);
    }
}

/* ---- The expected element `at` of the result. ---- */

typedef double result(const struct collective *, long at);

static double of_root(const struct collective *c, long at) {
    (void)c;
    return element(0, at);
}

static double sum_at_root(const struct collective *c, long at) {
    return c->task->rank ? element(c->task->rank, at) : sum((int)c->task->ranks, at);
}

static double sum_of_all(const struct collective *c, long at) {
    return sum((int)c->task->ranks, at);
}

static double sum_up_to_this(const struct collective *c, long at) {
    return sum(c->task->rank + 1, at);
}

static double of_each(const struct collective *c, long at) {
    return element((int)(at / c->count), at % c->count);
}

static double of_each_for_this(const struct collective *c, long at) {
    return element((int)(at / c->count), c->task->rank * (long)c->count + at % c->count);
}

static void measure(const struct task *task, rounds *run, long given, long got, result *expected) {
    struct collective c = {.task = task, .count = (int)(task->bytes / 8)};
    c.data = allocate(given * c.count, sizeof *c.data);
    c.into = got ? allocate(got * c.count, sizeof *c.into) : NULL;
    batches(task, run, &c, 1, TO_THE_LAST); /* repeated sums of zeros stay finite */
    for (long at = 0; at < given * c.count; at++) {
        c.data[at] = element(task->rank, at);
    }
    run(&c, 1);
    const double *there = got ? c.into : c.data;
    long wrong = 0;
    for (long at = 0; at < (got ? got : given) * c.count; at++) {
        wrong += there[at] != expected(&c, at);
    }
    if (wrong) {
        report_bad("%ld elements are wrong", wrong);
    }
    free(c.data);
    free(c.into);
}

void measure_broadcast(const struct task *task) {
    measure(task, broadcasts, 1, 0, of_root);
}

void measure_reduce(const struct task *task) {
    measure(task, reduces, 1, 0, sum_at_root);
}

void measure_all_reduce(const struct task *task) {
    measure(task, all_reduces, 1, 0, sum_of_all);
}

void measure_scan(const struct task *task) {
    measure(task, scans, 1, 0, sum_up_to_this);
}

void measure_all_gather(const struct task *task) {
    measure(task, all_gathers, 1, task->ranks, of_each);
}

void measure_all_to_all(const struct task *task) {
    measure(task, all_to_alls, task->ranks, task->ranks, of_each_for_this);
}
