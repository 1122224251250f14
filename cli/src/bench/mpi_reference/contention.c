/* Locks of rank 0 that several ranks compete for. */
#include "reference.h"

#include <stddef.h>
#include <stdlib.h>

/* The contents of rank 0's window. */
struct guarded {
    int64_t counter;
    int64_t competing; /* the number of ranks that compete */
    int64_t over;
};

/* The size of the part that a competitor writes if only the counter changes. */
enum { COUNTER = offsetof(struct guarded, competing) };

/* Reads or writes the first bytes of rank 0's window. The caller holds its lock. */
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
    MPI_Get(&counter, sizeof counter, MPI_BYTE, 0, 0, sizeof counter, MPI_BYTE, win);
    MPI_Win_unlock(0, win);
    return counter;
}

static double largest_of_all(double mine) {
    double largest;
    MPI_Allreduce(&mine, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return largest;
}

/* Stretches of successive acquisitions, as in the worker: each is timed if every rank had its share of it. */
enum { LENGTH = 500, MOST = 1 << 14 };

struct stretches {
    double *mine;  /* this rank's acquisitions in each */
    double *begun; /* the time of each one's first acquisition; 0 if another rank made it */
};

static void record(const struct stretches *stretches, int64_t before, double now) {
    if (before / LENGTH < MOST) {
        stretches->mine[before / LENGTH]++;
        if (before % LENGTH == 0) {
            stretches->begun[before / LENGTH] = now;
        }
    }
}

static void report_stretches(const struct task *task, const struct stretches *stretches) {
    double *least = allocate(MOST, sizeof *least), *most = allocate(MOST, sizeof *most);
    double *begun = allocate(MOST, sizeof *begun), share = (double)LENGTH / (double)task->ranks;
    MPI_Allreduce(stretches->mine, least, MOST, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(stretches->mine, most, MOST, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(stretches->begun, begun, MOST, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    for (int at = 1; at < MOST; at++) {
        bool timed = begun[at - 1] > 0 && begun[at] > begun[at - 1];
        if (timed && least[at - 1] >= 0.7 * share && most[at - 1] <= 1.4 * share) {
            report_sample((begun[at] - begun[at - 1]) / LENGTH);
        }
    }
    free(least);
    free(most);
    free(begun);
}

struct acquired {
    int64_t counted, not_counted;
    double longest, took;
};

/* Acquires the lock as often as it can, and reads the clock once per turn, outside the lock. Acquisitions count once all
   ranks compete, and until the first rank's time is over. */
static struct acquired compete(const struct task *task, MPI_Win win, const struct stretches *stretches) {
    struct acquired acquired = {0};
    struct guarded seen;
    bool came = false, over = false;
    double begun = now_ns(), before = begun;
    while (!over) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
        read_now(win, &seen, sizeof seen);
        bool all = seen.competing == task->ranks;
        over = seen.over != 0;
        bool more = !came || (!over && before - begun > task->millis * 1e6);
        seen.counter++;
        seen.competing += !came;
        seen.over = over || (came && more);
        write_at_unlock(win, &seen, more ? (int)sizeof seen : COUNTER);
        MPI_Win_unlock(0, win);
        came = true;
        double now = now_ns();
        record(stretches, seen.counter - 1, now);
        if (over || !all) {
            acquired.not_counted++;
            begun = over ? begun : now;
        } else {
            acquired.counted++;
            acquired.longest = now - before > acquired.longest ? now - before : acquired.longest;
            acquired.took = now - begun;
        }
        before = now;
    }
    return acquired;
}

void measure_contended(const struct task *task) {
    MPI_Win win;
    window_open(sizeof(struct guarded), &win);
    struct stretches stretches = {allocate(MOST, sizeof(double)), allocate(MOST, sizeof(double))};
    MPI_Barrier(MPI_COMM_WORLD);
    struct acquired mine = compete(task, win, &stretches);
    int64_t acquired = mine.counted + mine.not_counted;
    MPI_Barrier(MPI_COMM_WORLD);
    report_value("seconds", largest_of_all(mine.took) / 1e9);
    report_of_all(task, "acquired", (double)mine.counted, -1);
    report_value("longest_wait", largest_of_all(mine.longest));

    int64_t all, counter = read_counter(win);
    MPI_Allreduce(&acquired, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (counter != all) {
        report_bad("the counter is %ld after %ld acquisitions", (long)counter, (long)all);
    }
    report_stretches(task, &stretches);
    free(stretches.mine);
    free(stretches.begun);
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
        read_now(win, &counter, sizeof counter); /* only now it certainly holds the lock */
        double granted = now_ns();
        if (granted - before > writes.longest) {
            writes.longest = granted - before;
        }
        counter++;
        write_at_unlock(win, &counter, sizeof counter);
        MPI_Win_unlock(0, win);
        writes.done++;
        passed = (long)((now_ns() - begun) / 1e6); /* requests whose time passed meanwhile are dropped */
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
