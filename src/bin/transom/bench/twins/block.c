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
        for (long k = i; k < size; k++) { /* what is left of the diagonal stays 0 */
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

/* Rows and columns of a tile of c that stays in registers while a row of a meets a column of b. */
enum { ROWS = 8, LANES = 8, VECTORS = 2, COLUMNS = LANES * VECTORS };

/* Several numbers that lie wherever numbers may lie. */
typedef double lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE lanes *at(const double *place) {
    return (lanes *)place;
}

INLINE void tile(long size, double *restrict c, const double *restrict a, const double *restrict b) {
    lanes sums[ROWS][VECTORS] = {0};
    for (long k = 0; k < size; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
#pragma GCC unroll 2
            for (int j = 0; j < VECTORS; j++) {
                sums[i][j] += a[i * size + k] * *at(b + k * size + j * LANES);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++) {
            *at(c + i * size + j * LANES) -= sums[i][j];
        }
    }
}

INLINE void tiles(long size, double *restrict c, const double *restrict a, const double *restrict b) {
    long whole_rows = size - size % ROWS, whole_columns = size - size % COLUMNS;
    for (long i = 0; i < whole_rows; i += ROWS) {
        for (long j = 0; j < whole_columns; j += COLUMNS) {
            tile(size, c + i * size + j, a + i * size, b + j);
        }
    }
    /* What tiles do not cover: columns on the right of the whole rows, then the rows below. */
    for (long i = 0; i < size; i++) {
        long from = i < whole_rows ? whole_columns : 0;
        for (long k = 0; k < size && from < size; k++) {
            subtract_scaled(size - from, c + i * size + from, a[i * size + k], b + k * size + from);
        }
    }
}

/* tiles; for blocks of the usual sizes, copies of it that know theirs. */
INLINE void tiled(long size, double *restrict c, const double *restrict a, const double *restrict b) {
    switch (size) {
    case 16:
        return tiles(16, c, a, b);
    case 32:
        return tiles(32, c, a, b);
    default:
        return tiles(size, c, a, b);
    }
}

#ifdef __x86_64__
#define PRODUCT(name, features)                                                                                        \
    __attribute__((target(features))) static void name(long size, double *restrict c, const double *restrict a,       \
                                                       const double *restrict b) {                                     \
        tiled(size, c, a, b);                                                                                          \
    }

PRODUCT(product_avx512, "avx512f")
PRODUCT(product_avx2, "avx2,fma")
#endif

void block_subtract_product(long size, double *restrict c, const double *restrict a, const double *restrict b) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) {
        return product_avx512(size, c, a, b);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return product_avx2(size, c, a, b);
    }
#endif
    tiles(size, c, a, b);
}
