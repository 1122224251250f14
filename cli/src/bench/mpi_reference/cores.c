/* Binding to cores. A rank binds itself, so that it runs on the core that `transom bench` chose. */
#define _GNU_SOURCE
#include "reference.h"

#include <sched.h>
#include <stdlib.h>

static bool bind_to(int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return !sched_setaffinity(0, sizeof one, &one);
}

/* This process's future rank, if its launcher tells it before MPI_Init; otherwise -1. */
static long rank_to_be(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
    for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
        const char *text = getenv(names[at]);
        if (text) {
            return strtol(text, NULL, 10);
        }
    }
    return -1;
}

bool is_bound(const struct task *task) {
    return task->cored && task->ranks && task->ranks <= task->cored;
}

void bind_early(const struct task *task) {
    long rank = rank_to_be();
    if (is_bound(task) && rank >= 0 && rank < task->ranks) {
        bind_to(task->cores[rank]);
    }
}

void bind_or_die(const struct task *task) {
    if (is_bound(task) && !bind_to(task->cores[task->rank])) {
        die("rank %d may not run on core %d of --cores", task->rank, task->cores[task->rank]);
    }
}

void report_cores(const struct task *task) {
    if (is_bound(task)) {
        report_of_all(task, "cpu", sched_getcpu(), -1);
    }
}

void on_core(const struct task *task, void (*work)(void)) {
    cpu_set_t before;
    bool moves = task->rank < task->cored && !sched_getaffinity(0, sizeof before, &before) &&
                 bind_to(task->cores[task->rank]);
    work();
    if (moves) {
        sched_setaffinity(0, sizeof before, &before);
    }
}
