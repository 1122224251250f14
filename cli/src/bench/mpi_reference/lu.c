/* Blocked dense LU factorization without pivoting, as in examples/lu. Each rank holds its blocks in a window, works on
   them in place, and gets the blocks of others. */
#include "block.h"
#include "reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

struct lu {
    const struct task *task;
    bool clocked; /* there is a clock around everything but block operations */
    bool gets; /* gets are in flight */
    double outside_ns, waiting_ns; /* the second is part of the first */
    struct inverses inverses; /* of the diagonal block of a step */
    long n, size, blocks; /* rows of the matrix, of a block, and of blocks; the last may extend past n */
    long rank_rows, rank_columns, my_row, my_column;
    MPI_Win win;
    double *mine;
    const double **parts; /* the parts of all ranks, if they can be read in place */
};

/* ---- The owners of blocks, and the elements. ---- */

static struct lu lu_open(const struct task *task) {
    struct lu lu = {.task = task, .n = task->n, .size = task->block};
    if (lu.size > lu.n || lu.n > 1 << 16) {
        die("--n %ld --block %ld: expected at most %d rows, and a block no larger than the matrix", lu.n, lu.size, 1 << 16);
    }
    lu.blocks = (lu.n + lu.size - 1) / lu.size;
    for (long rows = 1; rows * rows <= task->ranks; rows++) {
        if (task->ranks % rows == 0) {
            lu.rank_rows = rows;
        }
    }
    lu.rank_columns = task->ranks / lu.rank_rows;
    lu.my_row = task->rank / lu.rank_columns;
    lu.my_column = task->rank % lu.rank_columns;
    long rows = (lu.blocks + lu.rank_rows - 1) / lu.rank_rows;
    long columns = (lu.blocks + lu.rank_columns - 1) / lu.rank_columns;
    long bytes = rows * columns * lu.size * lu.size * (long)sizeof(double);
    if (task->sync != SHARED) {
        lu.mine = window_open(bytes, &lu.win);
        return lu;
    }
    lu.mine = window_open_shared(bytes, &lu.win);
    lu.parts = allocate(task->ranks, sizeof *lu.parts);
    for (int rank = 0; rank < task->ranks; rank++) {
        MPI_Aint size;
        int unit;
        MPI_Win_shared_query(lu.win, rank, &size, &unit, &lu.parts[rank]);
    }
    return lu;
}

static int owner(const struct lu *lu, long row, long column) {
    return (int)(row % lu->rank_rows * lu->rank_columns + column % lu->rank_columns);
}

static long offset(const struct lu *lu, long row, long column) {
    long in_a_row = (lu->blocks + lu->rank_columns - 1) / lu->rank_columns;
    return (row / lu->rank_rows * in_a_row + column / lu->rank_columns) * lu->size * lu->size;
}

static double *own(const struct lu *lu, long row, long column) {
    return lu->mine + offset(lu, row, column);
}

/* This rank's first row or column of blocks from `from` on; the next ones are `of` apart. */
static long first(long from, long mine, long of) {
    return from + (mine + of - from % of) % of;
}

static long first_row(const struct lu *lu, long from) {
    return first(from, lu->my_row, lu->rank_rows);
}

static long first_column(const struct lu *lu, long from) {
    return first(from, lu->my_column, lu->rank_columns);
}

static double element(const struct lu *lu, long row, long column) {
    if (row >= lu->n || column >= lu->n) {
        return row == column;
    }
    uint64_t hash = (uint64_t)row << 32 | (uint64_t)column;
    for (int round = 0; round < 2; round++) {
        hash = (hash ^ hash >> 31) * 0x9e3779b97f4a7c15;
    }
    double random = (double)(hash >> 11) / (double)(1ull << 52) - 1;
    return row == column ? (double)lu->n + 1 + random : random;
}

static void fill(struct lu *lu) {
    for (long row = first_row(lu, 0); row < lu->blocks; row += lu->rank_rows) {
        for (long column = first_column(lu, 0); column < lu->blocks; column += lu->rank_columns) {
            double *block = own(lu, row, column);
            for (long at = 0; at < lu->size * lu->size; at++) {
                block[at] = element(lu, row * lu->size + at / lu->size, column * lu->size + at % lu->size);
            }
        }
    }
}

/* ---- Access to blocks. ---- */

static double outside_begin(const struct lu *lu) {
    return lu->clocked ? now_ns() : 0;
}

static void outside_end(struct lu *lu, double begun) {
    if (lu->clocked) {
        lu->outside_ns += now_ns() - begun;
    }
}

/* Any block: in place if it is this rank's or memory is shared, otherwise copied to `room`, valid after `fetched`. */
static const double *fetch(struct lu *lu, long row, long column, double *room) {
    int from = owner(lu, row, column), count = (int)(lu->size * lu->size);
    if (from == lu->task->rank) {
        return own(lu, row, column);
    }
    if (lu->parts) {
        return lu->parts[from] + offset(lu, row, column);
    }
    double begun = outside_begin(lu);
    if (lu->task->sync == LOCK) {
        MPI_Win_lock(MPI_LOCK_SHARED, from, 0, lu->win);
    }
    MPI_Aint at = offset(lu, row, column) * (MPI_Aint)sizeof(double);
    MPI_Get(room, count, MPI_DOUBLE, from, at, count, MPI_DOUBLE, lu->win);
    if (lu->task->sync == LOCK) {
        MPI_Win_unlock(from, lu->win);
    }
    lu->gets = true;
    outside_end(lu, begun);
    return room;
}

static void fetched(struct lu *lu) {
    if (lu->task->sync == FLUSH && lu->gets) {
        double begun = outside_begin(lu);
        MPI_Win_flush_local_all(lu->win);
        outside_end(lu, begun);
    }
    lu->gets = false;
}

/* Makes the blocks that each rank has stored visible to later gets of others. In a lock_all epoch it cannot be a fence. */
static void step_done(struct lu *lu) {
    double begun = outside_begin(lu), before = lu->outside_ns;
    if (lu->task->sync != LOCK) {
        MPI_Win_sync(lu->win);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_sync(lu->win);
    } else {
        MPI_Win_fence(MPI_MODE_NOSUCCEED, lu->win);
    }
    outside_end(lu, begun);
    lu->waiting_ns += lu->outside_ns - before;
}

/* ---- The factorization. ---- */

/* Solves this rank's blocks below and to the right of a step's factored diagonal block. */
static void perimeter(struct lu *lu, long step, double *room) {
    bool below = step % lu->rank_columns == lu->my_column && first_row(lu, step + 1) < lu->blocks;
    bool right = step % lu->rank_rows == lu->my_row && first_column(lu, step + 1) < lu->blocks;
    if (!below && !right) {
        return;
    }
    const double *diagonal = fetch(lu, step, step, room);
    fetched(lu);
    block_inverses(lu->size, diagonal, &lu->inverses);
    for (long row = first_row(lu, step + 1); below && row < lu->blocks; row += lu->rank_rows) {
        block_solve_upper(lu->size, own(lu, row, step), &lu->inverses);
    }
    for (long column = first_column(lu, step + 1); right && column < lu->blocks; column += lu->rank_columns) {
        block_solve_lower(lu->size, own(lu, step, column), &lu->inverses);
    }
}

/* Updates this rank's blocks below and to the right of a step. The pivot row's blocks are fetched once for all rows. */
static void interior(struct lu *lu, long step, const double **upper, double *room) {
    long area = lu->size * lu->size;
    for (long column = first_column(lu, step + 1), at = 0; column < lu->blocks; column += lu->rank_columns, at++) {
        upper[at] = fetch(lu, step, column, room + (at + 1) * area);
    }
    for (long row = first_row(lu, step + 1); row < lu->blocks; row += lu->rank_rows) {
        const double *left = fetch(lu, row, step, room);
        fetched(lu);
        for (long column = first_column(lu, step + 1), at = 0; column < lu->blocks; column += lu->rank_columns, at++) {
            block_subtract_product(lu->size, own(lu, row, column), left, upper[at]);
        }
    }
}

static void factor(struct lu *lu, const double **upper, double *room) {
    for (long step = 0; step < lu->blocks; step++) {
        if (owner(lu, step, step) == lu->task->rank) {
            block_factor(lu->size, own(lu, step, step));
        }
        step_done(lu);
        perimeter(lu, step, room);
        step_done(lu);
        interior(lu, step, upper, room);
    }
    lu->clocked = false; /* the last barrier is not part of the factorization */
    step_done(lu);
}

/* ---- The check: LU x = A x. ---- */

/* y = T x, where T is the upper triangle of the factored matrix (with the diagonal), or the lower one (with unit diagonal). */
static void multiply_triangle(struct lu *lu, bool upper, const double *x, double *y, double *room) {
    for (long row = 0; row < lu->blocks; row++) {
        for (long column = upper ? row : 0; column < (upper ? lu->blocks : row + 1); column++) {
            const double *block = fetch(lu, row, column, room);
            fetched(lu);
            for (long at = 0; at < lu->size * lu->size; at++) {
                long i = row * lu->size + at / lu->size, j = column * lu->size + at % lu->size;
                if (upper ? j >= i : j < i) {
                    y[i] += block[at] * x[j];
                } else if (!upper && j == i) {
                    y[i] += x[j];
                }
            }
        }
    }
}

static void check(struct lu *lu, double *room) {
    long padded = lu->blocks * lu->size;
    double *x = allocate(padded, sizeof *x), *ux = allocate(padded, sizeof *ux), *lux = allocate(padded, sizeof *lux);
    for (long at = 0; at < lu->n; at++) {
        x[at] = (double)(at % 7) - 3;
    }
    multiply_triangle(lu, true, x, ux, room);
    multiply_triangle(lu, false, ux, lux, room);
    double worst = 0, largest_a = 0, largest_x = 3;
    for (long i = 0; i < lu->n; i++) {
        double sum = 0;
        for (long j = 0; j < lu->n; j++) {
            double a = element(lu, i, j);
            largest_a = fmax(largest_a, fabs(a));
            sum += a * x[j];
        }
        double error = fabs(lux[i] - sum);
        worst = isnan(error) ? INFINITY : fmax(worst, error);
    }
    double residual = worst / ((double)lu->n * DBL_EPSILON * largest_a * largest_x);
    report_value("residual", isinf(residual) ? DBL_MAX : residual);
    if (!(residual <= 10)) {
        report_bad("the residual |LUx - Ax| / (n eps |A| |x|) is %g, expected at most 10", residual);
    }
    free(x);
    free(ux);
    free(lux);
}

static void measure(const struct task *task, bool clocked) {
    struct lu lu = lu_open(task);
    lu.clocked = clocked;
    /* Aligned as in the worker. */
    double **inverses[] = {&lu.inverses.lower, &lu.inverses.upper, &lu.inverses.old};
    for (int at = 0; at < 3; at++) {
        if (!(*inverses[at] = calloc((size_t)(lu.size * lu.size), sizeof(double)))) {
            die("cannot allocate a block of %ld rows", lu.size);
        }
    }
    long columns = lu.blocks / lu.rank_columns + 2;
    double *room = allocate(columns, lu.size * lu.size * (long)sizeof(double));
    const double **upper = allocate(columns, sizeof *upper);
    if (task->sync != LOCK) {
        MPI_Win_lock_all(0, lu.win);
    }
    fill(&lu);
    step_done(&lu);

    lu.outside_ns = lu.waiting_ns = 0;
    double begun = now_ns();
    factor(&lu, upper, room);
    double took = now_ns() - begun, outside[] = {lu.outside_ns, lu.waiting_ns}, sums[2];
    report_value("seconds", took / 1e9);
    if (clocked) {
        MPI_Allreduce(outside, sums, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        report_value("outside_kernel", sums[0] / (double)task->ranks / 1e9);
        report_value("waiting", sums[1] / (double)task->ranks / 1e9);
    }

    if (task->rank == 0) {
        report_kernel(lu.size);
        check(&lu, room);
    }
    if (task->sync != LOCK) {
        MPI_Win_unlock_all(lu.win);
    }
    MPI_Win_free(&lu.win);
    free(room);
    free(upper);
    free(lu.parts);
    free(lu.inverses.lower);
    free(lu.inverses.upper);
    free(lu.inverses.old);
}

void measure_lu(const struct task *task) {
    measure(task, false);
}

void measure_lu_outside(const struct task *task) {
    measure(task, true);
}
