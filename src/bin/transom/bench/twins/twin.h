/* What the files of a twin share: an MPI program that measures what `transom bench` measures; see README.md. */
#ifndef TWIN_H
#define TWIN_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

/* How operations are made complete, or in which variant something runs. */
enum sync {
    LOCK, LOCK_EXCLUSIVE, LOCK_ALL, FLUSH, FLUSH_LOCAL, FENCE, PSCW, BARRIER, ONE_SIDED, TWO_SIDED, SHARED, NONE,
    SYNCS /* how many there are */
};

/* What is to be measured, from the command line. */
struct task {
    const struct measurement *measurement;
    enum sync sync;
    bool f64; /* accumulates double instead of int64_t */
    long bytes, ranks, millis, n, block, grid;
    int rank; /* this one's */
};

struct measurement {
    const char *name;
    unsigned syncs; /* bit 1 << sync: those it is defined for */
    long fewest;    /* ranks */
    void (*run)(const struct task *);
};

/* operations.c */
void measure_put(const struct task *);
void measure_get(const struct task *);
void measure_accumulate(const struct task *);
void measure_get_accumulate(const struct task *);
void measure_fetch_and_op(const struct task *);
void measure_compare_and_swap(const struct task *);
void measure_put_bw(const struct task *);
void measure_get_bw(const struct task *);
void measure_lock(const struct task *);
void measure_barrier(const struct task *);
/* contention.c */
void measure_contended(const struct task *);
void measure_readers_writer(const struct task *);
/* overlap.c */
void measure_overlap(const struct task *);
/* lu.c */
void measure_lu(const struct task *);
void measure_lu_outside(const struct task *);
/* pipeline.c */
void measure_pipeline(const struct task *);

/* clock.c: time, batches of operations, and how far apart the cores are. */
double now_ns(void);
double median(double *values, long count); /* sorts them */
double span_of_all(double begun, double ended); /* from the first beginning to the last end; all ranks call it */
void sleep_until(double ns);
void pause_briefly(unsigned tries); /* for loops that wait: spins at first, then lets others run */

/* Carries out `count` operations, of which each takes part in `what`. */
typedef void rounds(void *what, long count);
/* Calls `run` with growing counts, each a multiple of `unit`, for the time of the task, and keeps a sample of each call
   that was long enough. If `together`, all ranks call this and rank 0 says how many; otherwise rank 0 alone. */
void batches(const struct task *, rounds *run, void *what, long unit, bool together);

void crossing_open(const struct task *);
void crossing_measure(const struct task *);
void crossing_close(const struct task *);

/* leave.c: no rank outlives its mpirun, and none leaves segments behind when it is ended. Before and after MPI_Init. */
void leave_cleanly(void);

/* report.c: what rank 0 prints. */
void report_crossing(double ns);
void report_sample(double ns);
void report_value(const char *name, double value);
void report_value_of(const char *name, int rank, double value); /* NAME.RANK */
void report_bad(const char *why, ...) __attribute__((format(printf, 1, 2))); /* by any rank; the first counts */
bool report_print(const struct task *); /* whether all was right; all ranks call it */
_Noreturn void die(const char *why, ...) __attribute__((format(printf, 1, 2)));

/* memory.c */
void *allocate(long count, long size);       /* zeroed, aligned to a page */
/* This rank's part, zeroed; all ranks call it; displacements in bytes. The second may be read and written in place. */
void *window_open(long bytes, MPI_Win *win);
void *window_open_shared(long bytes, MPI_Win *win);

#endif
