/* Declarations shared by the files of the reference program, which measures in MPI what `transom bench` measures;
   see README.md. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

enum { MOST_CORES = 1024 };

/* The synchronization of operations, or the variant of a measurement. */
enum sync {
    LOCK, LOCK_EXCLUSIVE, LOCK_ALL, FLUSH, FLUSH_LOCAL, FENCE, PSCW, BARRIER, COLLECTIVE, MESSAGES, GAPS, ONE_SIDED, TWO_SIDED,
    SHARED, NONE,
    SYNCS /* their number */
};

/* The task from the command line. */
struct task {
    const struct measurement *measurement;
    enum sync sync;
    bool f64; /* accumulate doubles instead of int64_t */
    long bytes, ranks, millis, n, block, grid, hosts;
    int cores[MOST_CORES], cored; /* the cores for ranks, in the order in which ranks take them, and their number */
    int rank; /* this process's rank */
};

struct measurement {
    const char *name;
    unsigned syncs; /* bit 1 << sync for each allowed one */
    long fewest;    /* the least number of ranks */
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
double span_of_all(double begun, double ended); /* from the first begin to the last end of all ranks; collective */
void sleep_until(double ns);
void pause_briefly(unsigned tries); /* for waiting loops: spins at first, then yields */

/* Executes `count` operations on `what`. */
typedef void rounds(void *what, long count);
/* Who calls: rank 0 alone; or all ranks, with the count and the clock of rank 0, or with the time of the slowest rank. */
enum clock { ALONE, TOGETHER, TO_THE_LAST };
/* Calls `run` for the time of the task. Its count starts as `unit` and doubles until a call is long enough. Reports a
   sample of each call that was long enough, after a warm-up of 5 % of the time. */
void batches(const struct task *, rounds *run, void *what, long unit, enum clock);
/* As `batches`, but passes each sample to `take`. */
typedef void sampled(double ns, void *to);
void batches_to(const struct task *, rounds *run, void *what, long unit, enum clock, sampled *take, void *to);
/* As TOGETHER, but returns the median of the samples; only rank 0's is valid. */
double batches_median(const struct task *, rounds *run, void *what, long unit);

/* cores.c: if --cores has enough cores, each rank is bound to one: before MPI_Init if the launcher tells the rank, and
   always after it. */
bool is_bound(const struct task *);
void bind_early(const struct task *);
void bind_or_die(const struct task *);
void report_cores(const struct task *); /* the core of each rank; collective */
/* Calls `work` on this rank's core of --cores, if it has one, and restores the thread's affinity. */
void on_core(const struct task *, void (*work)(void));

/* crossing.c: the relation of the cores of ranks 0 and 1. */
void crossing_open(const struct task *);
void crossing_measure(const struct task *);
void crossing_close(const struct task *);

/* leave.c: no rank outlives its mpirun, and a terminated rank leaves no segments behind. Called before and after MPI_Init. */
void leave_cleanly(void);
_Noreturn void die(const char *why, ...) __attribute__((format(printf, 1, 2)));

/* report.c: the report that rank 0 prints. */
void report_cores_apart(double crossing_ns, double slowdown);
void report_sample(double ns);
void report_value(const char *name, double value);
/* NAME.RANK of each rank but `without`; collective. */
void report_of_all(const struct task *, const char *name, double mine, int without);
void report_bad(const char *why, ...) __attribute__((format(printf, 1, 2))); /* at any rank; only the first is kept */
bool report_print(const struct task *); /* returns whether all results were right; collective */

/* memory.c */
void *allocate(long count, long size);       /* zeroed, page-aligned */
/* Returns this rank's part, zeroed. Collective. Displacements are in bytes. The second window may be read and written in place. */
void *window_open(long bytes, MPI_Win *win);
void *window_open_shared(long bytes, MPI_Win *win);
void *window_of(MPI_Win win, int rank); /* the part of a rank, in a window of the second kind */

#endif
