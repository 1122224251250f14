/* What the files of a twin share: an MPI program that measures what `transom bench` measures; see README.md. */
#ifndef TWIN_H
#define TWIN_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

enum { MOST_CORES = 1024 };

/* How operations are made complete, or in which variant something runs. */
enum sync {
    LOCK, LOCK_EXCLUSIVE, LOCK_ALL, FLUSH, FLUSH_LOCAL, FENCE, PSCW, BARRIER, COLLECTIVE, MESSAGES, GAPS, ONE_SIDED, TWO_SIDED,
    SHARED, NONE,
    SYNCS /* how many there are */
};

/* What is to be measured, from the command line. */
struct task {
    const struct measurement *measurement;
    enum sync sync;
    bool f64; /* accumulates double instead of int64_t */
    long bytes, ranks, millis, n, block, grid;
    int cores[MOST_CORES], cored; /* those that ranks may take, in their order, and how many */
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
/* collectives.c */
void measure_broadcast(const struct task *);
void measure_reduce(const struct task *);
void measure_all_reduce(const struct task *);
void measure_scan(const struct task *);
void measure_all_gather(const struct task *);
void measure_all_to_all(const struct task *);
/* messages.c */
void measure_pingpong(const struct task *);
void measure_stream(const struct task *);
void measure_bidirectional(const struct task *);
void measure_message_rate(const struct task *);
/* calls.c */
void measure_overhead(const struct task *);
void measure_overlap_messages(const struct task *);
void measure_overlap_collectives(const struct task *);
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

/* kernel.c */
void measure_kernel(const struct task *);
void report_kernel(long size); /* by rank 0 */

/* clock.c: time, and batches of operations. */
double now_ns(void);
double median(double *values, long count); /* sorts them */
double span_of_all(double begun, double ended); /* from the first beginning to the last end; all ranks call it */
void sleep_until(double ns);
void pause_briefly(unsigned tries); /* for loops that wait: spins at first, then lets others run */

/* Carries out `count` operations, of which each takes part in `what`. */
typedef void rounds(void *what, long count);
/* Who calls: rank 0 alone; or all ranks, of which rank 0 says how many, by its clock or by that of the rank which takes the longest. */
enum clock { ALONE, TOGETHER, TO_THE_LAST };
/* Calls `run` with growing counts, each a multiple of `unit`, for the time of the task, and keeps a sample of each call
   that was long enough. */
void batches(const struct task *, rounds *run, void *what, long unit, enum clock);
/* The same with each sample given to `take`. */
typedef void sampled(double ns, void *to);
void batches_to(const struct task *, rounds *run, void *what, long unit, enum clock, sampled *take, void *to);
/* Together, and the median of the samples instead of them; rank 0's is the one that counts. */
double batches_median(const struct task *, rounds *run, void *what, long unit);

/* cores.c: if --cores has enough of them, each rank is bound to one: before MPI_Init if the launcher says which rank this
   will be, and surely after. */
bool is_bound(const struct task *);
void bind_early(const struct task *);
void bind_or_die(const struct task *);
void report_cores(const struct task *); /* on which core each rank is; all ranks call it */
/* Does something on the core of --cores that is this rank's, if there is one, and is then as free as before. */
void on_core(const struct task *, void (*work)(void));

/* crossing.c: how the cores of ranks 0 and 1 are to each other. */
void crossing_open(const struct task *);
void crossing_measure(const struct task *);
void crossing_close(const struct task *);

/* leave.c: no rank outlives its mpirun, and none leaves segments behind when it is ended. Before and after MPI_Init. */
void leave_cleanly(void);
_Noreturn void die(const char *why, ...) __attribute__((format(printf, 1, 2)));

/* report.c: what rank 0 prints. */
void report_cores_apart(double crossing_ns, double slowdown);
void report_sample(double ns);
void report_value(const char *name, double value);
/* NAME.RANK of each rank but `without`; all ranks call it. */
void report_of_all(const struct task *, const char *name, double mine, int without);
void report_bad(const char *why, ...) __attribute__((format(printf, 1, 2))); /* by any rank; the first counts */
bool report_print(const struct task *); /* whether all was right; all ranks call it */

/* memory.c */
void *allocate(long count, long size);       /* zeroed, aligned to a page */
/* This rank's part, zeroed; all ranks call it; displacements in bytes. The second may be read and written in place. */
void *window_open(long bytes, MPI_Win *win);
void *window_open_shared(long bytes, MPI_Win *win);

#endif
