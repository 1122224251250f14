/* Time, batches of operations, and how far apart the cores are. */
#define _GNU_SOURCE
#include "twin.h"

#include <sched.h>
#include <stdatomic.h>
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

void batches(const struct task *task, rounds *run, void *what, long unit, bool together) {
    double least = task->millis * 1e6 / 10000; /* at most some 10,000 samples */
    if (least < 1000) {
        least = 1000;
    }
    double begun = now_ns(), warm = begun + task->millis * 5e4, end = begun + task->millis * 1e6;
    long count = unit, next = unit, samples = 0;
    for (;;) {
        if (together) {
            MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        }
        if (!count) {
            return;
        }
        if (together) {
            MPI_Barrier(MPI_COMM_WORLD);
        }
        double before = now_ns();
        run(what, count);
        double after = now_ns();
        if (after - before < least) {
            next = count * 2;
        } else if (after >= warm) {
            report_sample((after - before) / count);
            samples++;
        }
        if (task->rank == 0) {
            count = after >= end && samples ? 0 : next;
        }
    }
}

/* A ball goes to and fro on one cache line that ranks 0 and 1 share; even is rank 0's turn. */
static struct {
    MPI_Comm node;
    MPI_Win win;
    _Atomic uint64_t *line;
} court;

enum { LINE = 128, THROWS = 32, GAMES = 41 };
static const uint64_t over = UINT64_MAX;

void crossing_open(const struct task *task) {
    if (task->ranks < 2) {
        return;
    }
    int size;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, task->rank, MPI_INFO_NULL, &court.node);
    MPI_Comm_size(court.node, &size);
    if (size != task->ranks) {
        die("%ld ranks of one machine are expected, and only %d are on this one", task->ranks, size);
    }
    char *mine, *base;
    MPI_Aint bytes;
    int unit;
    MPI_Win_allocate_shared(2 * LINE, 1, MPI_INFO_NULL, court.node, &mine, &court.win);
    MPI_Win_shared_query(court.win, 0, &bytes, &unit, &base);
    court.line = (_Atomic uint64_t *)(((uintptr_t)base + LINE - 1) / LINE * LINE);
}

static uint64_t await(uint64_t parity, uint64_t last) {
    uint64_t ball;
    unsigned tries = 0;
    while ((ball = atomic_load(court.line)) != over && (ball % 2 != parity || ball <= last)) {
        pause_briefly(tries++);
    }
    return ball;
}

static void serve(void) {
    double games[GAMES], begun = now_ns(), before = begun;
    long played = 0;
    /* Two ranks on one core throw once a time slice, so not all games may be played. */
    for (uint64_t ball = 0; played < GAMES && (before - begun < 5e7 || !played); played++) {
        for (int thrown = 0; thrown < THROWS; thrown++) {
            atomic_store(court.line, ball + 1);
            ball = await(0, ball);
        }
        double after = now_ns();
        games[played] = (after - before) / (2 * THROWS);
        before = after;
    }
    atomic_store(court.line, over);
    report_crossing(median(games, played));
}

static void answer(void) {
    for (uint64_t ball = 0; (ball = await(1, ball)) != over;) {
        atomic_store(court.line, ball + 1);
    }
}

/* Plays on a core of its own, if this rank has a choice, and is then free again. */
static void on_core(int number, void (*play)(void)) {
    cpu_set_t before, one;
    CPU_ZERO(&one);
    bool moves = !sched_getaffinity(0, sizeof before, &before) && CPU_COUNT(&before) > number && CPU_COUNT(&before) > 1;
    for (int core = 0, seen = 0; moves && core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &before) && seen++ == number) {
            CPU_SET(core, &one);
        }
    }
    moves = moves && !sched_setaffinity(0, sizeof one, &one);
    play();
    if (moves) {
        sched_setaffinity(0, sizeof before, &before);
    }
}

void crossing_measure(const struct task *task) {
    if (task->ranks < 2) {
        return;
    }
    if (task->rank == 0) {
        atomic_store(court.line, 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (task->rank < 2) {
        on_core(task->rank, task->rank == 0 ? serve : answer);
    }
    while (atomic_load(court.line) != over) {
        sleep_until(now_ns() + 2e5); /* the others leave the cores to them */
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

void crossing_close(const struct task *task) {
    if (task->ranks >= 2) {
        MPI_Win_free(&court.win);
        MPI_Comm_free(&court.node);
    }
}
