/* Single operations, completed by each of MPI's synchronizations; and barriers. */
#include "reference.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BURST = 64 }; /* operations before a flush in bandwidth measurements, all on one place */

struct access {
    const struct task *task;
    enum sync sync;
    MPI_Win win;
    MPI_Group pair[2]; /* rank 0 and rank 1; both this rank if it is alone */
    char *window, *origin, *result;
    char *there; /* the target's part of the window, if memory is shared */
    MPI_Datatype type;
    int movers; /* the number of ranks that call the operation in turn, if both take part */
    int target; /* of this rank */
    int bytes, count;
    long done; /* the number of this rank's operations so far */
};

/* ---- The operations. ---- */

typedef void operation(struct access *);

static void put(struct access *a) {
    MPI_Put(a->origin, a->bytes, MPI_BYTE, a->target, 0, a->bytes, MPI_BYTE, a->win);
}

static void get(struct access *a) {
    MPI_Get(a->result, a->bytes, MPI_BYTE, a->target, 0, a->bytes, MPI_BYTE, a->win);
}

static void accumulate(struct access *a) {
    a->done++;
    MPI_Accumulate(a->origin, a->count, a->type, a->target, 0, a->count, a->type, MPI_SUM, a->win);
}

static void get_accumulate(struct access *a) {
    a->done++;
    MPI_Get_accumulate(a->origin, a->count, a->type, a->result, a->count, a->type, a->target, 0, a->count, a->type,
                       MPI_SUM, a->win);
}

static void fetch_and_op(struct access *a) {
    a->done++;
    MPI_Fetch_and_op(a->origin, a->result, a->type, a->target, 0, MPI_SUM, a->win);
}

/* Each swap increments the value, so that the final value tells whether all of them succeeded. */
static void compare_and_swap(struct access *a) {
    int64_t *origin = (int64_t *)a->origin;
    origin[1] = a->done++;
    origin[0] = a->done;
    MPI_Compare_and_swap(&origin[0], &origin[1], a->result, MPI_INT64_T, a->target, 0, a->win);
}

/* ---- The same by the processor, in memory that ranks share. ---- */

static void store(struct access *a) {
    if (a->bytes == sizeof(int64_t)) {
        *(volatile int64_t *)a->there = *(int64_t *)a->origin;
    } else {
        memcpy(a->there, a->origin, a->bytes);
        __asm__ volatile("" ::: "memory"); /* no copy is omitted */
    }
}

static void fetch_and_add(struct access *a) {
    a->done++;
    *(int64_t *)a->result = atomic_fetch_add((_Atomic int64_t *)a->there, *(int64_t *)a->origin);
}

/* ---- Synchronizations, inlined for each operation, so that no call uses a function pointer. ---- */

#define INLINE static inline __attribute__((always_inline))

INLINE void fenced(struct access *a, long count, operation *call) {
    for (long at = 0; at < count; at++) {
        if (a->task->rank == at % a->movers) {
            call(a);
        }
        MPI_Win_fence(0, a->win);
    }
}

INLINE void post_start_complete_wait(struct access *a, long count, operation *call) {
    int me = a->task->rank;
    for (long at = 0; at < count && me < 2; at++) {
        int origin = (int)(at % a->movers), target = a->movers - 1 - origin;
        if (me == target) {
            MPI_Win_post(a->pair[origin], 0, a->win);
        }
        if (me == origin) {
            MPI_Win_start(a->pair[target], 0, a->win);
            call(a);
            MPI_Win_complete(a->win);
        }
        if (me == target) {
            MPI_Win_wait(a->win);
        }
    }
}

INLINE void operate(struct access *a, long count, operation *call) {
    switch (a->sync) {
    case LOCK:
    case LOCK_EXCLUSIVE: {
        int kind = a->sync == LOCK ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE;
        for (long at = 0; at < count; at++) {
            MPI_Win_lock(kind, a->target, 0, a->win);
            call(a);
            MPI_Win_unlock(a->target, a->win);
        }
        break;
    }
    case LOCK_ALL:
        for (long at = 0; at < count; at++) {
            MPI_Win_lock_all(0, a->win);
            call(a);
            MPI_Win_unlock_all(a->win);
        }
        break;
    case FLUSH:
        for (long at = 0; at < count; at++) {
            call(a);
            MPI_Win_flush(a->target, a->win);
        }
        break;
    case FLUSH_LOCAL:
        for (long at = 0; at < count; at++) {
            call(a);
            MPI_Win_flush_local(a->target, a->win);
        }
        break;
    case FENCE:
        fenced(a, count, call);
        break;
    case PSCW:
        post_start_complete_wait(a, count, call);
        break;
    default:
        die("unknown synchronization");
    }
}

/* Stores are complete, and visible to others, after MPI_Win_sync. An atomic needs none. */
INLINE void stored(struct access *a, long count, operation *call) {
    for (long at = 0; at < count; at++) {
        call(a);
        MPI_Win_sync(a->win);
    }
}

INLINE void stored_in_a_row(struct access *a, long count, operation *call) {
    for (long at = 0; at < count; at += BURST) {
        for (int in_a_row = 0; in_a_row < BURST; in_a_row++) {
            call(a);
        }
        MPI_Win_sync(a->win);
    }
}

INLINE void repeated(struct access *a, long count, operation *call) {
    for (long at = 0; at < count; at++) {
        call(a);
    }
}

INLINE void burst(struct access *a, long count, operation *call) {
    for (long at = 0; at < count; at += BURST) {
        for (int in_a_row = 0; in_a_row < BURST; in_a_row++) {
            call(a);
        }
        MPI_Win_flush(a->target, a->win);
    }
}

/* The signature that `batches` needs. */
#define ROUNDS(name, way, call)                                                                                        \
    static void name(void *what, long count) {                                                                         \
        way(what, count, call);                                                                                        \
    }

ROUNDS(puts_each, operate, put)
ROUNDS(gets_each, operate, get)
ROUNDS(accumulates_each, operate, accumulate)
ROUNDS(get_accumulates_each, operate, get_accumulate)
ROUNDS(fetch_and_ops_each, operate, fetch_and_op)
ROUNDS(compare_and_swaps_each, operate, compare_and_swap)
ROUNDS(puts_in_a_row, burst, put)
ROUNDS(gets_in_a_row, burst, get)
ROUNDS(stores_each, stored, store)
ROUNDS(stores_in_a_row, stored_in_a_row, store)
ROUNDS(fetch_and_adds, repeated, fetch_and_add)

/* ---- Measurements. ---- */

static struct access access_open(const struct task *task, bool words, long bytes) {
    struct access a = {.task = task, .sync = task->sync, .movers = task->ranks == 1 ? 1 : 2};
    a.target = task->rank < a.movers ? a.movers - 1 - task->rank : 0;
    if (bytes > INT32_MAX || (words && bytes % 8)) {
        die("--bytes %ld: %s", bytes, words ? "expected a multiple of 8" : "expected less than 2 GiB");
    }
    a.bytes = (int)bytes;
    a.count = (int)(bytes / 8);
    a.type = task->f64 ? MPI_DOUBLE : MPI_INT64_T;
    a.origin = allocate(1, bytes + 8);
    a.result = allocate(1, bytes + 8);
    if (task->sync == SHARED) {
        a.window = window_open_shared(bytes, &a.win);
        a.there = window_of(a.win, a.target);
    } else {
        a.window = window_open(bytes, &a.win);
    }
    MPI_Group world;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    for (int rank = 0; rank < a.movers; rank++) {
        MPI_Group_incl(world, 1, &rank, &a.pair[rank]);
    }
    MPI_Group_free(&world);
    return a;
}

static void access_close(struct access *a) {
    for (int rank = 0; rank < a->movers; rank++) {
        MPI_Group_free(&a->pair[rank]);
    }
    MPI_Win_free(&a->win);
    free(a->origin);
    free(a->result);
}

/* Whether ranks 0 and 1 both call operations, so that all ranks take part in batches. */
static bool together(const struct access *a) {
    return a->sync == FENCE || a->sync == PSCW;
}

/* Whether one epoch spans all operations. */
static bool lasting(const struct access *a) {
    return a->sync == FLUSH || a->sync == FLUSH_LOCAL || a->sync == SHARED;
}

static bool moves(const struct access *a) {
    return together(a) ? a->task->rank < a->movers : a->task->rank == 0;
}

static void epoch_open(struct access *a) {
    if (a->sync == FENCE) {
        MPI_Win_fence(MPI_MODE_NOPRECEDE, a->win);
    } else if (lasting(a) && moves(a)) {
        MPI_Win_lock_all(0, a->win);
    }
}

static void epoch_close(struct access *a) {
    if (a->sync == FENCE) {
        MPI_Win_fence(MPI_MODE_NOSUCCEED, a->win);
    } else if (lasting(a) && moves(a)) {
        MPI_Win_unlock_all(a->win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void measure(struct access *a, rounds *run, long unit) {
    epoch_open(a);
    if (together(a) || a->task->rank == 0) {
        unit *= together(a) ? a->movers : 1;
        run(a, unit); /* touches all memory, so that no sample includes page faults */
        batches(a->task, run, a, unit, together(a) ? TOGETHER : ALONE);
    }
    epoch_close(a);
}

/* Executes one operation of each rank that calls any. */
static void once(struct access *a, rounds *run, long unit) {
    epoch_open(a);
    if (together(a) || a->task->rank == 0) {
        run(a, unit * (together(a) ? a->movers : 1));
    }
    epoch_close(a);
}

/* Calls `look` while this rank may read and write the window. */
static void at_home(struct access *a, void (*look)(struct access *)) {
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, a->task->rank, 0, a->win);
    look(a);
    MPI_Win_unlock(a->task->rank, a->win);
    MPI_Barrier(MPI_COMM_WORLD);
}

static unsigned char pattern(int owner, long at) {
    return (unsigned char)(owner * 89 + at * 7 + (at >> 8) + 1);
}

static void fill(struct access *a, char *bytes) {
    for (long at = 0; at < a->bytes; at++) {
        bytes[at] = (char)pattern(a->task->rank, at);
    }
}

static void expect(struct access *a, const char *bytes, int owner, const char *what) {
    for (long at = 0; at < a->bytes; at++) {
        if ((unsigned char)bytes[at] != pattern(owner, at)) {
            report_bad("byte %ld of what was %s is %u instead of %u", at, what, (unsigned char)bytes[at],
                       pattern(owner, at));
            return;
        }
    }
}

static void fill_window(struct access *a) {
    fill(a, a->window);
}

static void clear_window(struct access *a) {
    memset(a->window, 0, a->bytes);
}

/* The rank whose operations have this one as their target, or -1. */
static int origin_of(const struct access *a) {
    int origin = a->task->rank < a->movers ? a->movers - 1 - a->task->rank : -1;
    return together(a) || origin == 0 ? origin : -1;
}

static void expect_put(struct access *a) {
    if (origin_of(a) >= 0) {
        expect(a, a->window, origin_of(a), "put");
    }
}

static void measure_puts(struct access *a, rounds *run, long unit) {
    fill(a, a->origin);
    measure(a, run, unit);
    at_home(a, clear_window);
    once(a, run, unit);
    at_home(a, expect_put);
    access_close(a);
}

static void measure_gets(struct access *a, rounds *run, long unit) {
    at_home(a, fill_window);
    measure(a, run, unit);
    memset(a->result, 0, a->bytes);
    once(a, run, unit);
    if (moves(a)) {
        expect(a, a->result, a->target, "got");
    }
    access_close(a);
}

static void expect_numbers(struct access *a, const char *numbers, long expected, const char *what) {
    for (int at = 0; at < a->count; at++) {
        double number = a->task->f64 ? ((const double *)numbers)[at] : (double)((const int64_t *)numbers)[at];
        if (number != (double)expected) {
            report_bad("element %d of %s is %.17g instead of %ld", at, what, number, expected);
            return;
        }
    }
}

/* Checks the targets: every operation adds 1. */
static void expect_sum(struct access *a) {
    int origin = origin_of(a);
    if (origin >= 0) {
        long *done = (long *)a->result;
        expect_numbers(a, a->window, done[origin], "the window");
    }
}

static void fill_ones(struct access *a) {
    for (int at = 0; at < a->count; at++) {
        if (a->task->f64) {
            ((double *)a->origin)[at] = 1;
        } else {
            ((int64_t *)a->origin)[at] = 1;
        }
    }
}

static void measure_sums(struct access *a, rounds *run, bool fetches) {
    fill_ones(a);
    measure(a, run, 1);
    if (moves(a) && fetches) {
        expect_numbers(a, a->result, a->done - 1, "what was fetched last");
    }
    free(a->result);
    a->result = allocate(a->task->ranks, sizeof(long));
    MPI_Allgather(&a->done, 1, MPI_LONG, a->result, 1, MPI_LONG, MPI_COMM_WORLD);
    at_home(a, expect_sum);
    access_close(a);
}

void measure_put(const struct task *task) {
    struct access a = access_open(task, false, task->bytes);
    measure_puts(&a, task->sync == SHARED ? stores_each : puts_each, 1);
}

void measure_get(const struct task *task) {
    struct access a = access_open(task, false, task->bytes);
    measure_gets(&a, gets_each, 1);
}

enum { TRIES = 10, CALLS = 1000 };

/* The faster of two ways to do the same. Rank 0 tries both in turn, after a warm-up. */
static rounds *faster(struct access *a, rounds *ways[2]) {
    double least[2] = {0, 0};
    fill_ones(a);
    epoch_open(a);
    for (int try = 0; try < 2 * TRIES && a->task->rank == 0; try++) {
        double begun = now_ns();
        ways[try % 2](a, CALLS);
        double took = now_ns() - begun;
        if (try < 4 || took < least[try % 2]) {
            least[try % 2] = took;
        }
    }
    epoch_close(a);
    return ways[least[1] < least[0]];
}

/* A program may add one element by either call, and some libraries are faster in one of them. */
void measure_accumulate(const struct task *task) {
    struct access a = access_open(task, true, task->bytes);
    rounds *ways[2] = {accumulates_each, fetch_and_ops_each};
    measure_sums(&a, a.count == 1 && !together(&a) ? faster(&a, ways) : ways[0], false);
}

void measure_get_accumulate(const struct task *task) {
    struct access a = access_open(task, true, task->bytes);
    measure_sums(&a, get_accumulates_each, true);
}

/* These two use 8-byte integers for any size of the task. */
void measure_fetch_and_op(const struct task *task) {
    struct task words = *task;
    words.f64 = false;
    struct access a = access_open(&words, true, 8);
    measure_sums(&a, task->sync == SHARED ? fetch_and_adds : fetch_and_ops_each, true);
}

void measure_compare_and_swap(const struct task *task) {
    struct task words = *task;
    words.f64 = false;
    struct access a = access_open(&words, true, 8);
    measure_sums(&a, compare_and_swaps_each, true);
}

void measure_put_bw(const struct task *task) {
    struct access a = access_open(task, false, task->bytes);
    measure_puts(&a, task->sync == SHARED ? stores_in_a_row : puts_in_a_row, BURST);
}

void measure_get_bw(const struct task *task) {
    struct access a = access_open(task, false, task->bytes);
    measure_gets(&a, gets_in_a_row, BURST);
}

/* An uncontended lock, a put of 8 bytes, and the unlock. */
void measure_lock(const struct task *task) {
    struct access a = access_open(task, false, 8);
    measure_puts(&a, puts_each, 1);
}

static void barriers(void *what, long count) {
    (void)what;
    for (long at = 0; at < count; at++) {
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

void measure_barrier(const struct task *task) {
    batches(task, barriers, NULL, 1, TOGETHER);
    /* One rank enters late; no rank may leave before that. */
    for (int late = 0; late < task->ranks && late < 8; late++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (task->rank == late) {
            sleep_until(now_ns() + 1e6);
        }
        double came = now_ns(), last;
        MPI_Barrier(MPI_COMM_WORLD);
        double left = now_ns();
        MPI_Allreduce(&came, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (left < last) {
            report_bad("left a barrier %.0f ns before the last rank came", last - left);
        }
    }
}
