/* Locks of rank 0 that several ranks want at once. */
#include "twin.h"

#include <stdlib.h>

enum { HANDOVERS = 1 << 16 };

/* What lies in the window of rank 0. */
struct guarded {
    int64_t counter;
    int64_t holder; /* the last one */
    double left;    /* when it was about to unlock */
};

/* Reads or writes the first bytes of the window of rank 0, by whoever holds its lock. */
static void read_now(MPI_Win win, void *into, int bytes) {
    MPI_Get(into, bytes, MPI_BYTE, 0, 0, bytes, MPI_BYTE, win);
    MPI_Win_flush(0, win);
}

static void write_at_unlock(MPI_Win win, const void *from, int bytes) {
    MPI_Put(from, bytes, MPI_BYTE, 0, 0, bytes, MPI_BYTE, win);
}

static int64_t read_counter(MPI_Win win) {
    int64_t counter;
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
    read_now(win, &counter, sizeof counter);
    MPI_Win_unlock(0, win);
    return counter;
}

static double largest_of_all(double mine) {
    double largest;
    MPI_Allreduce(&mine, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return largest;
}

/* One value for each rank but `without`. */
static void report_of_all(const struct task *task, const char *name, double mine, int without) {
    double *all = allocate(task->ranks, sizeof *all);
    MPI_Allgather(&mine, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int rank = 0; rank < task->ranks; rank++) {
        if (rank != without) {
            report_value_of(name, rank, all[rank]);
        }
    }
    free(all);
}

/* Acquires the lock as often as it can until `end`; the clock is read once a turn, outside the lock. */
static int64_t compete(MPI_Win win, double end, double *longest, double *ended) {
    int64_t acquired = 0, counter;
    for (double before = now_ns(), after; before < end; before = after) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
        read_now(win, &counter, sizeof counter);
        counter++;
        write_at_unlock(win, &counter, sizeof counter);
        MPI_Win_unlock(0, win);
        acquired++;
        after = now_ns();
        if (after - before > *longest) {
            *longest = after - before;
        }
        *ended = after;
    }
    return acquired;
}

/* The median time from one holder's unlock to the next one's get; its clocks are in the lock, so it runs by itself. */
static double handovers(const struct task *task, MPI_Win win, double end, int64_t *acquired) {
    double *times = allocate(HANDOVERS, sizeof *times);
    struct guarded seen;
    long count = 0;
    while (now_ns() < end) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
        read_now(win, &seen, sizeof seen);
        double now = now_ns();
        if (seen.left > 0 && seen.holder != task->rank && count < HANDOVERS) {
            times[count++] = now - seen.left;
        }
        seen = (struct guarded){.counter = seen.counter + 1, .holder = task->rank, .left = now_ns()};
        write_at_unlock(win, &seen, sizeof seen);
        MPI_Win_unlock(0, win);
        ++*acquired;
    }
    double mine[2] = {median(times, count) * (double)count, (double)count}, all[2];
    MPI_Allreduce(mine, all, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    free(times);
    return all[1] > 0 ? all[0] / all[1] : 0;
}

void measure_contended(const struct task *task) {
    MPI_Win win;
    window_open(sizeof(struct guarded), &win);
    double begun = now_ns(), longest = 0, ended = begun;
    int64_t acquired = compete(win, begun + task->millis * 1e6, &longest, &ended);
    MPI_Barrier(MPI_COMM_WORLD);
    report_value("seconds", span_of_all(begun, ended) / 1e9);
    report_of_all(task, "acquired", (double)acquired, -1);
    report_value("longest_wait", largest_of_all(longest));
    if (task->ranks > 1) {
        report_value("handover", handovers(task, win, now_ns() + task->millis * 2.5e5, &acquired));
    }

    int64_t all, counter = read_counter(win);
    MPI_Allreduce(&acquired, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (counter != all) {
        report_bad("the counter is %ld after %ld acquisitions", (long)counter, (long)all);
    }
    MPI_Win_free(&win);
}

struct counts {
    int64_t done;
    double longest;
};

enum { WRITER = 1 };

static struct counts write_each_ms(const struct task *task, MPI_Win win, double begun) {
    struct counts writes = {0};
    long passed = 0;
    for (long wish = 0; wish < task->millis; wish = wish + 1 > passed ? wish + 1 : passed) {
        sleep_until(begun + (double)wish * 1e6);
        double before = now_ns();
        int64_t counter;
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
        read_now(win, &counter, sizeof counter); /* only then it surely has the lock */
        double granted = now_ns();
        if (granted - before > writes.longest) {
            writes.longest = granted - before;
        }
        counter++;
        write_at_unlock(win, &counter, sizeof counter);
        MPI_Win_unlock(0, win);
        writes.done++;
        passed = (long)((now_ns() - begun) / 1e6); /* wishes that passed meanwhile are lost */
    }
    return writes;
}

static struct counts read_without_pause(MPI_Win win, double end) {
    struct counts reads = {0};
    for (int64_t before = 0; now_ns() < end; reads.done++) {
        int64_t counter = read_counter(win);
        if (counter < before) {
            report_bad("the counter went from %ld back to %ld", (long)before, (long)counter);
        }
        before = counter;
    }
    return reads;
}

void measure_readers_writer(const struct task *task) {
    MPI_Win win;
    window_open(sizeof(struct guarded), &win);
    double begun = now_ns(), end = begun + task->millis * 1e6;
    bool writes = task->rank == WRITER;
    struct counts counts = writes ? write_each_ms(task, win, begun) : read_without_pause(win, end);
    double ended = now_ns();
    MPI_Barrier(MPI_COMM_WORLD);
    int64_t written = counts.done;
    MPI_Bcast(&written, 1, MPI_INT64_T, WRITER, MPI_COMM_WORLD);
    report_value("seconds", span_of_all(begun, ended) / 1e9);
    report_value("wanted", (double)task->millis);
    report_value("writes", (double)written);
    report_of_all(task, "reads", (double)counts.done, WRITER);
    report_value("longest_write_wait", largest_of_all(counts.longest));
    int64_t counter = read_counter(win);
    if (counter != written) {
        report_bad("the counter is %ld after %ld writes", (long)counter, (long)written);
    }
    MPI_Win_free(&win);
}
