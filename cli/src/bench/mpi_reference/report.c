/* The report that rank 0 prints. */
#include "reference.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 20000, FACTS = 1 << 16, WHY = 120 };

/* Collected until the end, so that printing does not disturb the measurement. */
static struct {
    double samples[SAMPLES];
    long sampled;
    char facts[FACTS];
    size_t written;
    char bad[WHY];
} report;

static void fact(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void fact(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t left = FACTS - report.written;
    size_t length = vsnprintf(report.facts + report.written, left, format, arguments);
    va_end(arguments);
    if (length >= left) {
        die("the report is longer than %d bytes", FACTS);
    }
    report.written += length;
}

void report_cores_apart(double crossing_ns, double slowdown) {
    fact("crossing %.2f\nslowdown %.3f\n", crossing_ns, slowdown);
}

void report_sample(double ns) {
    if (report.sampled < SAMPLES) {
        report.samples[report.sampled++] = ns;
    }
}

void report_value(const char *name, double value) {
    fact("value %s %.9g\n", name, value);
}

void report_of_all(const struct task *task, const char *name, double mine, int without) {
    double *all = allocate(task->ranks, sizeof *all);
    MPI_Allgather(&mine, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int rank = 0; rank < task->ranks; rank++) {
        if (rank != without) {
            fact("value %s.%d %.9g\n", name, rank, all[rank]);
        }
    }
    free(all);
}

void report_bad(const char *why, ...) {
    if (!report.bad[0]) {
        va_list arguments;
        va_start(arguments, why);
        vsnprintf(report.bad, WHY, why, arguments);
        va_end(arguments);
    }
}

bool report_print(const struct task *task) {
    char *bad = allocate(task->ranks, WHY);
    MPI_Allgather(report.bad, WHY, MPI_CHAR, bad, WHY, MPI_CHAR, MPI_COMM_WORLD);
    int first = 0;
    while (first < task->ranks && !bad[first * WHY]) {
        first++;
    }
    bool right = first == task->ranks;
    if (task->rank == 0) {
        fputs(report.facts, stdout);
        for (long at = 0; at < report.sampled; at++) {
            printf("sample %.6g\n", report.samples[at]);
        }
        if (right) {
            puts("check ok");
        } else {
            printf("check bad rank %d: %s\n", first, bad + first * WHY);
            fprintf(stderr, "mpi_reference: rank %d: %s\n", first, bad + first * WHY);
        }
        if (fflush(stdout)) {
            die("cannot write the report to stdout");
        }
    }
    free(bad);
    return right;
}
