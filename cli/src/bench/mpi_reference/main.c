/* An MPI program that measures one thing once, as `transom bench-worker` does: table of measurements, arguments, main. */
#include "reference.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IN(sync) (1u << (sync))
#define PASSIVE (IN(LOCK) | IN(LOCK_EXCLUSIVE) | IN(LOCK_ALL) | IN(FLUSH) | IN(FLUSH_LOCAL))
#define ANY (PASSIVE | IN(FENCE) | IN(PSCW))

static const struct measurement measurements[] = {
    {"put", ANY | IN(SHARED), 1, measure_put},
    {"get", ANY, 1, measure_get},
    {"accumulate", ANY, 1, measure_accumulate},
    {"get_accumulate", ANY, 1, measure_get_accumulate},
    {"fetch_and_op", ANY | IN(SHARED), 1, measure_fetch_and_op},
    {"compare_and_swap", ANY, 1, measure_compare_and_swap},
    {"put_bw", IN(FLUSH) | IN(SHARED), 1, measure_put_bw},
    {"get_bw", IN(FLUSH), 1, measure_get_bw},
    {"lock", IN(LOCK) | IN(LOCK_EXCLUSIVE), 1, measure_lock},
    {"barrier", IN(BARRIER), 1, measure_barrier},
    {"broadcast", IN(COLLECTIVE), 1, measure_broadcast},
    {"reduce", IN(COLLECTIVE), 1, measure_reduce},
    {"all_reduce", IN(COLLECTIVE), 1, measure_all_reduce},
    {"scan", IN(COLLECTIVE), 1, measure_scan},
    {"all_gather", IN(COLLECTIVE), 1, measure_all_gather},
    {"all_to_all", IN(COLLECTIVE), 1, measure_all_to_all},
    {"pingpong", IN(MESSAGES) | IN(GAPS), 2, measure_pingpong},
    {"stream", IN(MESSAGES), 2, measure_stream},
    {"bidirectional", IN(MESSAGES), 2, measure_bidirectional},
    {"message_rate", IN(MESSAGES), 2, measure_message_rate},
    {"overhead", IN(MESSAGES), 2, measure_overhead},
    {"overlap_messages", IN(MESSAGES), 2, measure_overlap_messages},
    {"overlap_collectives", IN(COLLECTIVE), 1, measure_overlap_collectives},
    {"contended", IN(LOCK_EXCLUSIVE), 1, measure_contended},
    {"readers_writer", IN(LOCK), 3, measure_readers_writer},
    {"overlap", IN(LOCK), 2, measure_overlap},
    {"kernel", IN(NONE), 1, measure_kernel},
    {"lu", IN(LOCK) | IN(FLUSH) | IN(SHARED), 1, measure_lu},
    {"lu_outside", IN(LOCK) | IN(FLUSH) | IN(SHARED), 1, measure_lu_outside},
    {"pipeline", IN(ONE_SIDED) | IN(TWO_SIDED) | IN(SHARED), 1, measure_pipeline},
    {"startup", IN(NONE), 1, NULL},
};

static const char *const sync_names[SYNCS] = {"lock", "lock_exclusive", "lock_all", "flush", "flush_local", "fence",
                                              "pscw", "barrier", "collective", "messages", "gaps", "one_sided", "two_sided",
                                              "shared", "none"};

static char wrong[400]; /* the error in the arguments; all ranks find the same, and rank 0 prints it */

#define REFUSE(...) (snprintf(wrong, sizeof wrong, __VA_ARGS__), false)

static bool parse_number(const char *name, const char *text, long *number) {
    char *end;
    errno = 0;
    *number = strtol(text, &end, 10);
    if (errno || end == text || *end || *number < 1 || *number > 1L << 31) {
        return REFUSE("%s %.40s: expected a whole number from 1 to %ld", name, text, 1L << 31);
    }
    return true;
}

static bool parse_sync(const char *text, struct task *task) {
    unsigned syncs = task->measurement->syncs;
    char expected[200] = "";
    for (enum sync sync = 0; sync < SYNCS; sync++) {
        if (syncs & IN(sync)) {
            if (!strcmp(text, sync_names[sync])) {
                task->sync = sync;
                return true;
            }
            strcat(strcat(expected, " "), sync_names[sync]);
        }
    }
    return REFUSE("--sync %.40s: %s goes with one of%s", text, task->measurement->name, expected);
}

static bool parse_cores(const char *text, struct task *task) {
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long core = strtol(at, &end, 10);
        if (errno || end == at || core < 0 || core > INT_MAX || task->cored == MOST_CORES || (*end && *end != ',')) {
            return REFUSE("--cores %.40s: expected up to %d numbers of at least 0, separated by commas", text, MOST_CORES);
        }
        task->cores[task->cored++] = (int)core;
        if (!*end) {
            return true;
        }
        at = end;
    }
}

static bool parse_option(const char *name, const char *text, struct task *task) {
    const struct { const char *name; long *number; } numbers[] = {
        {"--bytes", &task->bytes}, {"--ranks", &task->ranks}, {"--millis", &task->millis},
        {"--n", &task->n},         {"--block", &task->block}, {"--grid", &task->grid},
        {"--hosts", &task->hosts},
    };
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
        if (!strcmp(name, numbers[at].name)) {
            return parse_number(name, text, numbers[at].number);
        }
    }
    if (!strcmp(name, "--cores")) {
        return parse_cores(text, task);
    }
    if (!strcmp(name, "--sync")) {
        return parse_sync(text, task);
    }
    if (!strcmp(name, "--type")) {
        task->f64 = !strcmp(text, "f64");
        return task->f64 || !strcmp(text, "i64") || REFUSE("--type %.40s: expected i64 or f64", text);
    }
    return REFUSE("%.40s: expected one of --sync --bytes --ranks --millis --cores --n --block --grid --hosts --type", name);
}

static bool parse(int count, char **arguments, struct task *task) {
    for (size_t at = 0; count > 1 && at < sizeof measurements / sizeof *measurements; at++) {
        if (!strcmp(arguments[1], measurements[at].name)) {
            task->measurement = &measurements[at];
        }
    }
    if (!task->measurement) {
        return REFUSE("%.40s: expected a measurement, such as put", count > 1 ? arguments[1] : "no arguments");
    }
    task->sync = __builtin_ctz(task->measurement->syncs);
    for (int at = 2; at < count; at += 2) {
        if (at + 1 == count) {
            return REFUSE("%.40s: its value is missing", arguments[at]);
        }
        if (!parse_option(arguments[at], arguments[at + 1], task)) {
            return false;
        }
    }
    return true;
}

static bool fits(struct task *task) {
    int ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &task->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (wrong[0]) {
        return false;
    }
    if (!task->ranks) {
        task->ranks = ranks;
    }
    if (task->ranks != ranks) {
        return REFUSE("--ranks %ld: mpirun started %d", task->ranks, ranks);
    }
    if (ranks < task->measurement->fewest) {
        return REFUSE("%s takes at least %ld ranks, not %d", task->measurement->name, task->measurement->fewest, ranks);
    }
    return true;
}

static double resident_bytes(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*s %ld", &pages) != 1) {
        die("cannot read the resident memory from /proc/self/statm");
    }
    fclose(file);
    return (double)pages * sysconf(_SC_PAGESIZE);
}

int main(int count, char **arguments) {
    leave_cleanly();
    struct task task = {.bytes = 8, .millis = 200, .n = 1024, .block = 16, .grid = 1000, .hosts = 1};
    if (parse(count, arguments, &task)) {
        bind_early(&task);
    }
    double begun = now_ns();
    MPI_Init(&count, &arguments);
    double up = now_ns();
    leave_cleanly(); /* MPI_Init may have replaced the signal handlers */
    if (!fits(&task)) {
        if (task.rank == 0) {
            fprintf(stderr, "mpi_reference: %s\n", wrong);
        }
        MPI_Finalize();
        return 2;
    }
    bind_or_die(&task);
    if (task.measurement->run) {
        crossing_open(&task);
        crossing_measure(&task);
        task.measurement->run(&task);
        crossing_measure(&task);
        crossing_close(&task);
        report_cores(&task);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
        report_value("init_ns", up - begun);
        report_value("rss", resident_bytes());
    }
    bool right = report_print(&task);
    MPI_Finalize();
    return right ? 0 : 1;
}
