/* Time, and batches of operations. */
#include "reference.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double median(double *values, long count) {
    qsort(values, count, sizeof *values, compare);
    return count ? (values[(count - 1) / 2] + values[count / 2]) / 2 : 0;
}

double span_of_all(double begun, double ended) {
    double first, last;
    MPI_Allreduce(&begun, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&ended, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return last - first;
}

void sleep_until(double ns) {
    struct timespec until = {.tv_sec = (time_t)(ns / 1e9), .tv_nsec = (long)(ns - (time_t)(ns / 1e9) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) {
    }
}

void pause_briefly(unsigned tries) {
    if (tries > 2000) {
        sched_yield();
    }
#if defined(__x86_64__) || defined(__i386__)
    else {
        __builtin_ia32_pause();
    }
#endif
}

void batches_to(const struct task *task, rounds *run, void *what, long unit, enum clock clock, sampled *take, void *to) {
    double least = task->millis * 1e6 / 10000; /* about 10,000 samples at most */
    if (least < 1000) {
        least = 1000;
    }
    double begun = now_ns(), warm = begun + task->millis * 5e4, end = begun + task->millis * 1e6;
    long count = unit, next = unit, samples = 0;
    for (;;) {
        if (clock != ALONE) {
            MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        }
        if (!count) {
            return;
        }
        if (clock != ALONE) {
            MPI_Barrier(MPI_COMM_WORLD);
        }
        double before = now_ns();
        run(what, count);
        double after = now_ns(), took = after - before;
        if (clock == TO_THE_LAST) {
            MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        }
        if (took < least) {
            next = count * 2;
        } else if (after >= warm) {
            take(took / count, to);
            samples++;
        }
        if (task->rank == 0) {
            count = after >= end && samples ? 0 : next;
        }
    }
}

static void report(double ns, void *to) {
    (void)to;
    report_sample(ns);
}

void batches(const struct task *task, rounds *run, void *what, long unit, enum clock clock) {
    batches_to(task, run, what, unit, clock, report, NULL);
}

enum { MOST = 1 << 16 };

struct kept {
    double samples[MOST];
    long count;
};

static void keep(double ns, void *to) {
    struct kept *kept = to;
    kept->samples[kept->count++ % MOST] = ns;
}

double batches_median(const struct task *task, rounds *run, void *what, long unit) {
    struct kept *kept = calloc(1, sizeof *kept);
    if (!kept) {
        die("cannot allocate memory for samples");
    }
    batches_to(task, run, what, unit, TOGETHER, keep, kept);
    double ns = median(kept->samples, kept->count < MOST ? kept->count : MOST);
    free(kept);
    return ns;
}
