/* The relation of the cores of ranks 0 and 1: the time of a cache line from one to the other, and the slowdown of one by
   the other, as of two hardware threads of a core. */
#include "reference.h"

#include <stdatomic.h>

enum { LINE = 128, GAMES = 21, ROUND_TRIPS = 200, LOOPS = 25, NAP_NS = 200000 };

/* Phases of rank 1: it sleeps, is to start the loop, executes the loop, is to stop; then all ranks continue. */
enum phase { ASLEEP, BEGIN, RUNS, STOP, OVER };

/* Rank 0's memory, shared by all: the word that passes back and forth (even values are rank 0's turns), and rank 1's phase. */
static struct {
    MPI_Comm node;
    MPI_Win win;
    struct {
        _Atomic uint64_t ball, phase;
    } *line;
} court;

/* A single core has no crossing, nor have ranks that share no memory. */
static bool has_crossing(const struct task *task) {
    return task->ranks >= 2 && task->cored >= 2 && task->hosts < 2;
}

void crossing_open(const struct task *task) {
    if (!has_crossing(task)) {
        return;
    }
    int size;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, task->rank, MPI_INFO_NULL, &court.node);
    MPI_Comm_size(court.node, &size);
    if (size != task->ranks) {
        die("expected all %ld ranks on one machine, found %d on this one", task->ranks, size);
    }
    char *mine, *base;
    MPI_Aint bytes;
    int unit;
    MPI_Win_allocate_shared(2 * LINE, 1, MPI_INFO_NULL, court.node, &mine, &court.win);
    MPI_Win_shared_query(court.win, 0, &bytes, &unit, &base);
    court.line = (void *)(((uintptr_t)base + LINE - 1) / LINE * LINE);
}

static uint64_t look(_Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}

static void tell(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}

static void until(_Atomic uint64_t *word, uint64_t expected) {
    for (unsigned tries = 0; look(word) != expected; tries++) {
        pause_briefly(tries);
    }
}

/* The nanoseconds of a cache line from one core to the other. */
static double play(uint64_t mine) {
    double games[GAMES];
    for (int game = 0; game < GAMES; game++) {
        double begun = now_ns();
        for (int trip = 0; trip < ROUND_TRIPS; trip++, mine += 2) {
            until(&court.line->ball, mine);
            tell(&court.line->ball, mine + 1);
        }
        games[game] = (now_ns() - begun) / (2 * ROUND_TRIPS);
    }
    return median(games, GAMES);
}

/* About 10 us of shifts and additions, in as many independent chains as a core can execute at a time. */
static void run_loop(void) {
    uint64_t chains[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    __asm__ volatile("" : "+m"(chains));
    for (int turn = 0; turn < 2000; turn++) {
        for (int at = 0; at < 8; at++) {
            chains[at] ^= chains[at] << 13;
            chains[at] ^= chains[at] >> 7;
            chains[at] += chains[at] << 17;
        }
    }
    __asm__ volatile("" : "+m"(chains));
}

static double median_of_loops(void) {
    double times[LOOPS];
    for (int at = 0; at < LOOPS; at++) {
        double begun = now_ns();
        run_loop();
        times[at] = now_ns() - begun;
    }
    return median(times, LOOPS);
}

static void of_rank_0(void) {
    double crossing = play(0);
    /* Rank 1 sleeps, or is about to fall asleep. */
    double alone = median_of_loops();
    tell(&court.line->phase, BEGIN);
    until(&court.line->phase, RUNS);
    double together = median_of_loops();
    tell(&court.line->phase, STOP);
    report_cores_apart(crossing, together / alone);
    tell(&court.line->phase, OVER);
}

static void of_rank_1(void) {
    play(1);
    while (look(&court.line->phase) == ASLEEP) {
        sleep_until(now_ns() + NAP_NS);
    }
    tell(&court.line->phase, RUNS);
    while (look(&court.line->phase) < STOP) {
        run_loop();
    }
}

void crossing_measure(const struct task *task) {
    if (!has_crossing(task)) {
        return;
    }
    if (task->rank == 0) {
        tell(&court.line->ball, 0);
        tell(&court.line->phase, ASLEEP);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (task->rank < 2) {
        on_core(task, task->rank == 0 ? of_rank_0 : of_rank_1);
    }
    while (look(&court.line->phase) != OVER) {
        sleep_until(now_ns() + NAP_NS); /* the other ranks sleep and leave the cores free */
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

void crossing_close(const struct task *task) {
    if (has_crossing(task)) {
        MPI_Win_free(&court.win);
        MPI_Comm_free(&court.node);
    }
}
