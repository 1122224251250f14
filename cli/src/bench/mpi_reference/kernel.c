/* The speed of a core in LU's block operation alone, as in the worker's `kernel`: on page-aligned blocks. */
#include "block.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>

enum { BATCHES = 25, FEWEST = 3 };
static const double BATCH = 4e6, ENOUGH_NS = 1e8; /* operations of a batch, or those of one product if that has more */

static double *block_of(long size, double value) {
    double *block = allocate(size * size, sizeof *block);
    for (long at = 0; at < size * size; at++) {
        block[at] = value;
    }
    return block;
}

void report_kernel(long size) {
    double *block = block_of(size, 0), *left = block_of(size, 1e-3), *upper = block_of(size, 1e-3);
    double once = 2.0 * (double)size * (double)size * (double)size, speeds[BATCHES];
    long products = (long)ceil(BATCH / once);
    int done = 0;
    for (double begun = now_ns(); done < FEWEST || (done < BATCHES && now_ns() - begun < ENOUGH_NS); done++) {
        double before = now_ns();
        for (long product = 0; product < products; product++) {
            __asm__ volatile("" : : "r"(block), "r"(left) : "memory");
            block_subtract_product(size, block, left, upper);
        }
        speeds[done] = (double)products * once / (now_ns() - before);
    }
    report_value("kernel", median(speeds, done));
    free(block);
    free(left);
    free(upper);
}

void measure_kernel(const struct task *task) {
    if (task->rank == 0) {
        report_kernel(task->block);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}
