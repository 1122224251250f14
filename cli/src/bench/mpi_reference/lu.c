/* Blocked dense LU factorization without pivoting, by the steps of the worker. Each rank holds its blocks in a window,
   works on them in place, and gets the blocks of others. There are no barriers: each rank announces its progress, and
   waits only for blocks that it needs. */
#include "block.h"
#include "reference.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
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
    MPI_Win flags;
    _Atomic int64_t *stages; /* of each rank, as it announced it here */
    _Atomic int64_t **stages_at; /* the same of all ranks, if memory is shared */
    double *left, *diagonal, *rooms; /* copies: of a block left of this rank's; of a diagonal block; of a pivot row */
    const double *left_block, **upper; /* the previous step's pivot column in a row, and its pivot row in this rank's columns */
    long inverted; /* the step whose diagonal block `inverses` belongs to, or -1 */
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
    lu.inverted = -1;
    long rows = (lu.blocks + lu.rank_rows - 1) / lu.rank_rows;
    long columns = (lu.blocks + lu.rank_columns - 1) / lu.rank_columns;
    long block = lu.size * lu.size * (long)sizeof(double), stages = task->ranks * (long)sizeof(int64_t);
    lu.left = allocate(1, block);
    lu.diagonal = allocate(1, block);
    lu.rooms = allocate(columns, block);
    lu.upper = allocate(columns, sizeof *lu.upper);
    if (task->sync != SHARED) {
        lu.mine = window_open(rows * columns * block, &lu.win);
        lu.stages = window_open(stages, &lu.flags);
    } else {
        lu.mine = window_open_shared(rows * columns * block, &lu.win);
        lu.stages = window_open_shared(stages, &lu.flags);
        lu.parts = allocate(task->ranks, sizeof *lu.parts);
        lu.stages_at = allocate(task->ranks, sizeof *lu.stages_at);
        for (int rank = 0; rank < task->ranks; rank++) {
            lu.parts[rank] = window_of(lu.win, rank);
            lu.stages_at[rank] = window_of(lu.flags, rank);
        }
    }
    MPI_Win_lock_all(0, lu.flags);
    return lu;
}

static void lu_close(struct lu *lu) {
    MPI_Win_unlock_all(lu->flags);
    MPI_Win_free(&lu->flags);
    MPI_Win_free(&lu->win);
    free(lu->left);
    free(lu->diagonal);
    free(lu->rooms);
    free(lu->upper);
    free(lu->parts);
    free(lu->stages_at);
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

/* ---- The progress of ranks, which go through steps and their rows in order: each stage includes all earlier ones. ---- */

/* The step's solved blocks of a row: that in the pivot column, or the whole pivot row. */
static int64_t stage_of_row(const struct lu *lu, long step, long row) {
    return step * (lu->blocks + 1) + row + 2;
}

static int64_t stage_of_diagonal(const struct lu *lu, long step) {
    return stage_of_row(lu, step, step) - 1;
}

/* Announces a stage to all others. A rank that waits for it sees everything stored before. */
static void announce(struct lu *lu, int64_t stage) {
    double begun = outside_begin(lu);
    if (!lu->stages_at) {
        MPI_Win_sync(lu->flags); /* a release store needs none */
    }
    for (int rank = 0; rank < lu->task->ranks; rank++) {
        if (rank == lu->task->rank) {
            continue;
        }
        if (lu->stages_at) {
            atomic_store_explicit(&lu->stages_at[rank][lu->task->rank], stage, memory_order_release);
        } else {
            MPI_Aint at = lu->task->rank * (MPI_Aint)sizeof stage;
            MPI_Accumulate(&stage, 1, MPI_INT64_T, rank, at, 1, MPI_INT64_T, MPI_REPLACE, lu->flags);
            MPI_Win_flush(rank, lu->flags);
        }
    }
    outside_end(lu, begun);
}

enum { CALL_EACH = 16 };

static void wait_for(struct lu *lu, int rank, int64_t stage) {
    if (rank == lu->task->rank) {
        return;
    }
    double begun = outside_begin(lu), before = lu->outside_ns;
    for (unsigned tries = 1; atomic_load_explicit(&lu->stages[rank], memory_order_acquire) < stage; tries++) {
        if (!lu->stages_at && tries % CALL_EACH == 0) {
            /* MPICH 4 acts for other ranks only during this rank's calls, and not in MPI_Win_sync. */
            int probed;
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &probed, MPI_STATUS_IGNORE);
        }
        pause_briefly(tries);
    }
    if (!lu->stages_at) {
        MPI_Win_sync(lu->flags);
    }
    outside_end(lu, begun);
    lu->waiting_ns += lu->outside_ns - before;
}

/* ---- The factorization. ---- */

/* Fetches the previous step's pivot row once, as it updates all rows of this rank. */
static void bring_uppers(struct lu *lu, long step) {
    long column = first_column(lu, step);
    if (step == 0 || column >= lu->blocks) {
        return;
    }
    wait_for(lu, owner(lu, step - 1, column), stage_of_row(lu, step - 1, step - 1));
    for (long at = 0; column < lu->blocks; column += lu->rank_columns, at++) {
        lu->upper[at] = fetch(lu, step - 1, column, lu->rooms + at * lu->size * lu->size);
    }
    fetched(lu);
}

/* Inverts the diagonal block of a step, once it is done. */
static void invert(struct lu *lu, long step) {
    if (lu->inverted != step) {
        lu->inverted = step;
        wait_for(lu, owner(lu, step, step), stage_of_diagonal(lu, step));
        const double *diagonal = fetch(lu, step, step, lu->diagonal);
        fetched(lu);
        block_inverses(lu->size, diagonal, &lu->inverses);
    }
}

/* Subtracts the previous step's product from this rank's blocks of a row, in the columns from `from` to before `to`. */
static void update(struct lu *lu, long step, long row, long from, long to) {
    long column = first_column(lu, from), at = (column - first_column(lu, step)) / lu->rank_columns;
    for (; step > 0 && column < to; column += lu->rank_columns, at++) {
        block_subtract_product(lu->size, own(lu, row, column), lu->left_block, lu->upper[at]);
    }
}

/* Updates a row of this rank by the previous step, and solves this step's part of it. The blocks that others wait for
   come first. */
static void factor_row(struct lu *lu, long step, long row) {
    if (step > 0) {
        wait_for(lu, owner(lu, row, step - 1), stage_of_row(lu, step - 1, row));
        lu->left_block = fetch(lu, row, step - 1, lu->left);
        fetched(lu);
    }
    if (owner(lu, row, step) == lu->task->rank) {
        update(lu, step, row, step, step + 1);
        if (row == step) {
            block_factor(lu->size, own(lu, row, step));
            announce(lu, stage_of_diagonal(lu, step));
        } else {
            invert(lu, step);
            block_solve_upper(lu->size, own(lu, row, step), &lu->inverses);
            announce(lu, stage_of_row(lu, step, row));
        }
    }
    update(lu, step, row, step + 1, lu->blocks);
    if (row == step) {
        for (long column = first_column(lu, step + 1); column < lu->blocks; column += lu->rank_columns) {
            invert(lu, step);
            block_solve_lower(lu->size, own(lu, row, column), &lu->inverses);
        }
        announce(lu, stage_of_row(lu, step, row));
    }
}

static void factor(struct lu *lu) {
    for (long step = 0; step < lu->blocks; step++) {
        bring_uppers(lu, step);
        for (long row = first_row(lu, step); row < lu->blocks; row += lu->rank_rows) {
            factor_row(lu, step, row);
        }
    }
    /* A rank whose blocks others need calls the library until the last one has them. */
    int64_t end = stage_of_row(lu, lu->blocks, lu->blocks);
    announce(lu, end);
    for (int rank = 0; rank < lu->task->ranks; rank++) {
        wait_for(lu, rank, end);
    }
    MPI_Barrier(MPI_COMM_WORLD);
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
    if (task->sync != LOCK) {
        MPI_Win_lock_all(0, lu.win);
    }
    fill(&lu);
    MPI_Win_sync(lu.flags);
    MPI_Barrier(MPI_COMM_WORLD);

    lu.outside_ns = lu.waiting_ns = 0;
    double begun = now_ns();
    factor(&lu);
    double took = now_ns() - begun, outside[] = {lu.outside_ns, lu.waiting_ns}, sums[2];
    report_value("seconds", took / 1e9);
    if (clocked) {
        MPI_Allreduce(outside, sums, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        report_value("outside_kernel", sums[0] / (double)task->ranks / 1e9);
        report_value("waiting", sums[1] / (double)task->ranks / 1e9);
    }

    if (task->rank == 0) {
        report_kernel(lu.size);
        check(&lu, lu.left);
    }
    if (task->sync != LOCK) {
        MPI_Win_unlock_all(lu.win);
    }
    lu_close(&lu);
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
