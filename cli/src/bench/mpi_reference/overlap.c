/* Rank 0 reads from rank 1 while rank 1 computes and makes no call. */
#include "reference.h"

#include <stdlib.h>
#include <string.h>

enum { COMPUTE_MS = 20, REPEATS = 64, FEWEST = 3 };

struct overlap {
    const struct task *task;
    MPI_Win win;
    char *window, *into;
};

static void compute(void) {
    double end = now_ns() + COMPUTE_MS * 1e6;
    volatile double sum = 0;
    while (now_ns() < end) {
        for (int at = 1; at < 200; at++) {
            sum = sum + 1.0 / at;
        }
    }
}

static double communicate(struct overlap *o, long count) {
    double before = now_ns();
    for (long at = 0; at < count; at++) {
        MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, o->win);
        MPI_Get(o->into, (int)o->task->bytes, MPI_BYTE, 1, 0, (int)o->task->bytes, MPI_BYTE, o->win);
        MPI_Win_unlock(1, o->win);
    }
    return now_ns() - before;
}

/* Both ranks begin together. Returns the time until both are done. */
static double together(struct overlap *o, bool computes, long operations) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = now_ns();
    if (o->task->rank == 1 && computes) {
        compute();
    } else if (o->task->rank == 0) {
        communicate(o, operations);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return now_ns() - begun;
}

/* The median over repetitions, until rank 0 decides to stop. */
static double repeat(struct overlap *o, bool computes, long operations, double ms) {
    double times[REPEATS], end = now_ns() + ms * 1e6;
    int done = 0, more = 1;
    while (more) {
        times[done++] = together(o, computes, operations);
        more = done < REPEATS && (done < FEWEST || now_ns() < end);
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    return median(times, done);
}

static char pattern(long at) {
    return (char)(at * 7 + 1);
}

static void sample_each_ms(struct overlap *o) {
    double begun = now_ns();
    for (double next = begun + 1e6; next < begun + (COMPUTE_MS - 1) * 1e6; next = now_ns() + 1e6) {
        sleep_until(next);
        memset(o->into, 0, o->task->bytes);
        report_sample(communicate(o, 1));
        for (long at = 0; at < o->task->bytes; at++) {
            if (o->into[at] != pattern(at)) {
                report_bad("byte %ld of what was got is %d instead of %d", at, o->into[at], pattern(at));
                return;
            }
        }
    }
}

/* Until the time is over, rank 1 computes while rank 0 gets data each ms. */
static void sample_all(struct overlap *o, double ms) {
    double end = now_ns() + ms * 1e6;
    for (int done = 1, more = 1; more; done++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (o->task->rank == 1) {
            compute();
        } else if (o->task->rank == 0) {
            sample_each_ms(o);
        }
        more = done < FEWEST || now_ns() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
}

/* The number of operations that take half of the computation's time, while rank 1 is in the library. */
static long operations_of_half(struct overlap *o) {
    long count = 0;
    double end = now_ns() + COMPUTE_MS * 1e6 / 2;
    while (o->task->rank == 0 && now_ns() < end) {
        communicate(o, 1);
        count++;
    }
    MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    return count;
}

void measure_overlap(const struct task *task) {
    if (task->bytes > INT32_MAX) {
        die("--bytes %ld: expected less than 2 GiB", task->bytes);
    }
    struct overlap o = {.task = task, .into = allocate(task->bytes, 1)};
    o.window = window_open(task->bytes, &o.win);
    for (long at = 0; at < task->bytes; at++) {
        o.window[at] = pattern(at);
    }
    MPI_Win_fence(MPI_MODE_NOSUCCEED, o.win);
    sample_all(&o, task->millis * 0.4);
    long operations = operations_of_half(&o);
    report_value("compute", repeat(&o, true, 0, 0) / 1e9);
    report_value("communication", repeat(&o, false, operations, 0) / 1e9);
    report_value("both", repeat(&o, true, operations, task->millis * 0.4) / 1e9);
    MPI_Win_free(&o.win);
    free(o.into);
}
