#include "block.h"

#include <string.h>

static void subtract_scaled(long count, double *restrict row, double factor, const double *restrict other) {
    for (long at = 0; at < count; at++) {
        row[at] -= factor * other[at];
    }
}

void block_factor(long size, double *block) {
    for (long k = 0; k < size; k++) {
        const double *pivots = block + k * size;
        for (long i = k + 1; i < size; i++) {
            double *row = block + i * size;
            row[k] /= pivots[k];
            subtract_scaled(size - k - 1, row + k + 1, row[k], pivots + k + 1);
        }
    }
}

static void minus_identity(long size, double *block) {
    memset(block, 0, (size_t)(size * size) * sizeof *block);
    for (long i = 0; i < size; i++) {
        block[i * size + i] = -1;
    }
}

void block_inverses(long size, const double *diagonal, struct inverses *inverses) {
    double *lower = inverses->lower, *upper = inverses->upper;
    minus_identity(size, lower);
    for (long i = 1; i < size; i++) {
        for (long k = 0; k < i; k++) {
            subtract_scaled(size, lower + i * size, diagonal[i * size + k], lower + k * size);
        }
    }
    minus_identity(size, upper);
    for (long i = 0; i < size; i++) {
        double *row = upper + i * size;
        for (long k = i; k < size; k++) { /* the part left of the diagonal stays 0 */
            const double *pivots = diagonal + k * size;
            row[k] /= pivots[k];
            subtract_scaled(size - k - 1, row + k + 1, row[k], pivots + k + 1);
        }
    }
}

static void set_aside(long size, double *block, double *old) {
    size_t bytes = (size_t)(size * size) * sizeof *block;
    memcpy(old, block, bytes);
    memset(block, 0, bytes);
}

void block_solve_lower(long size, double *block, struct inverses *inverses) {
    set_aside(size, block, inverses->old);
    block_subtract_product(size, block, inverses->lower, inverses->old);
}

void block_solve_upper(long size, double *block, struct inverses *inverses) {
    set_aside(size, block, inverses->old);
    block_subtract_product(size, block, inverses->old, inverses->upper);
}

/* A variant of the product for each instruction set, with tiles of c that fit its registers, as in the worker. */
#ifdef __x86_64__
#define NAME(of) of##_avx512
#define FOR __attribute__((target("avx512f")))
#define LANES 8
#define ROWS 8
#include "product.h"

#define NAME(of) of##_avx2
#define FOR __attribute__((target("avx2,fma")))
#define LANES 4
#define ROWS 4
#include "product.h"
#endif

#define NAME(of) of##_any
#define FOR
#define LANES 2
#define ROWS 4
#include "product.h"

void block_subtract_product(long size, double *restrict c, const double *restrict a, const double *restrict b) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) {
        return product_avx512(size, c, a, b);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return product_avx2(size, c, a, b);
    }
#endif
    product_any(size, c, a, b);
}
