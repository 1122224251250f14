/* A wavefront over a grid, as in the Parallel Research Kernel Synch_p2p. Each element needs its left, upper and upper left
   neighbours. Ranks own contiguous columns, and pass their last one to the next rank, row by row. */
#include "reference.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { CALL_EACH = 16 };

/* The window holds a value per row, and on a separate cache line the number of values received in all sweeps. */
struct pipeline {
    const struct task *task;
    MPI_Win win;
    char *next, *first; /* the parts of the next rank and of rank 0, if memory is shared */
    double *values;
    _Atomic int64_t *arrived;
    MPI_Aint arrived_at;
    double *grid;
    long n, width; /* includes the left neighbour's last column */
    int64_t sent, taken;
};

static void send(struct pipeline *p, int to, long row, double value) {
    if (p->task->sync == TWO_SIDED) {
        MPI_Send(&value, 1, MPI_DOUBLE, to, 0, MPI_COMM_WORLD);
        return;
    }
    if (p->task->sync == SHARED) {
        char *there = to ? p->next : p->first;
        ((double *)there)[row] = value;
        p->sent++;
        atomic_store_explicit((_Atomic int64_t *)(there + p->arrived_at), p->sent, memory_order_release);
        return;
    }
    MPI_Put(&value, 1, MPI_DOUBLE, to, row * (MPI_Aint)sizeof value, 1, MPI_DOUBLE, p->win);
    MPI_Win_flush(to, p->win); /* completes the value before the flag */
    p->sent++;
    MPI_Put(&p->sent, 1, MPI_INT64_T, to, p->arrived_at, 1, MPI_INT64_T, p->win);
    MPI_Win_flush(to, p->win);
}

static double receive(struct pipeline *p, int from, long row) {
    if (p->task->sync == TWO_SIDED) {
        double value;
        MPI_Recv(&value, 1, MPI_DOUBLE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return value;
    }
    p->taken++;
    for (unsigned tries = 1; atomic_load_explicit(p->arrived, memory_order_acquire) < p->taken; tries++) {
        if (p->task->sync == SHARED) {
            pause_briefly(tries);
            continue;
        }
        MPI_Win_sync(p->win);
        if (tries % CALL_EACH == 0) {
            /* MPICH 4 executes puts to this rank only during this rank's calls, and not in MPI_Win_sync. */
            int probed;
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &probed, MPI_STATUS_IGNORE);
        }
        pause_briefly(tries);
    }
    return p->values[row];
}

/* Computes one row of this rank's columns. The grid's first column is given. */
static void compute_row(struct pipeline *p, long row) {
    const double *above = p->grid + (row - 1) * p->width;
    double *this = p->grid + row * p->width;
    long first = p->task->rank ? 1 : 2;
    double left = this[first - 1];
    for (long at = first; at < p->width; at++) {
        left += above[at] - above[at - 1]; /* only one addition, not two, depends on the previous element */
        this[at] = left;
    }
}

/* One sweep over the grid. The corner goes back to the first element, so that the next sweep starts from its negative. */
static void sweep(struct pipeline *p) {
    int me = p->task->rank, last = (int)p->task->ranks - 1;
    for (long row = 1; row < p->n; row++) {
        if (me > 0) {
            p->grid[row * p->width] = receive(p, me - 1, row);
        }
        compute_row(p, row);
        if (me < last) {
            send(p, me + 1, row, p->grid[(row + 1) * p->width - 1]);
        }
    }
    double corner = -p->grid[p->n * p->width - 1];
    if (last > 0 && me == last) {
        send(p, 0, 0, corner);
    } else if (me == 0) {
        p->grid[1] = last > 0 ? receive(p, last, 0) : corner;
    }
}

static void fill(struct pipeline *p, long first) {
    for (long at = 0; at < p->width; at++) {
        p->grid[at] = (double)(first + at - 1);
    }
    if (p->task->rank == 0) {
        for (long row = 0; row < p->n; row++) {
            p->grid[row * p->width + 1] = (double)row;
        }
    }
}

static double sweeps(struct pipeline *p, long count) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = now_ns();
    for (long at = 0; at < count; at++) {
        sweep(p);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return now_ns() - begun;
}

void measure_pipeline(const struct task *task) {
    long n = task->grid, ranks = task->ranks, rank = task->rank;
    if (n < 2 * ranks || n > 1 << 20) {
        die("--grid %ld: expected at least 2 columns for each of %ld ranks, and at most %d", n, ranks, 1 << 20);
    }
    struct pipeline p = {.task = task, .n = n, .arrived_at = (n * 8 + 127) / 128 * 128};
    long first = n * rank / ranks;
    p.width = n * (rank + 1) / ranks - first + 1;
    p.grid = allocate(n * p.width, sizeof *p.grid);
    fill(&p, first);
    if (task->sync == SHARED) {
        p.values = window_open_shared(p.arrived_at + 128, &p.win);
        p.next = window_of(p.win, (int)((rank + 1) % ranks));
        p.first = window_of(p.win, 0);
    } else {
        p.values = window_open(p.arrived_at + 128, &p.win);
    }
    p.arrived = (_Atomic int64_t *)((char *)p.values + p.arrived_at);
    MPI_Win_lock_all(0, p.win);
    MPI_Win_sync(p.win);

    sweeps(&p, 1);
    double one = sweeps(&p, 1);
    long count = one > 0 ? (long)(task->millis * 1e6 / one) : 1;
    count = count < 1 ? 1 : count;
    MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    double took = sweeps(&p, count);
    report_value("mflops", 2.0 * (double)(n - 1) * (double)(n - 1) * (double)count / took * 1e3);

    /* Every element of the first row and column starts as its index. Each sweep adds the previous value of the corner. */
    double corner = p.grid[n * p.width - 1], expected = (double)(count + 2) * 2.0 * (double)(n - 1);
    if (rank == ranks - 1 && corner != expected) {
        report_bad("the corner is %.17g, expected %.17g", corner, expected);
    }
    MPI_Win_unlock_all(p.win);
    MPI_Win_free(&p.win);
    free(p.grid);
}
