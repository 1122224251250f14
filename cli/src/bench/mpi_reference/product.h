/* c -= a b, for one instruction set. block.c includes it for each, with
   NAME(of): the names defined here, FOR: an attribute that selects the instruction set,
   LANES: numbers in a vector, ROWS: rows of a tile of c, which is two vectors wide. */
#define VECTORS 2
#define INLINE static inline __attribute__((always_inline))

/* A vector of numbers, aligned only as one number. */
typedef double NAME(lanes) __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));

INLINE NAME(lanes) *NAME(at)(const double *place) {
    return (NAME(lanes) *)place;
}

/* Updates a tile of c, which stays in registers during the loop over columns of a and rows of b. */
INLINE void NAME(tile)(long size, double *restrict c, const double *restrict a, const double *restrict b) {
    NAME(lanes) sums[ROWS][VECTORS] = {0};
    for (long k = 0; k < size; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
#pragma GCC unroll 2
            for (int j = 0; j < VECTORS; j++) {
                sums[i][j] += a[i * size + k] * *NAME(at)(b + k * size + j * LANES);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++) {
            *NAME(at)(c + i * size + j * LANES) -= sums[i][j];
        }
    }
}

INLINE void NAME(tiles)(long size, double *restrict c, const double *restrict a, const double *restrict b) {
    long columns = LANES * VECTORS, whole_rows = size - size % ROWS, whole_columns = size - size % columns;
    for (long i = 0; i < whole_rows; i += ROWS) {
        for (long j = 0; j < whole_columns; j += columns) {
            NAME(tile)(size, c + i * size + j, a + i * size, b + j);
        }
    }
    /* The part outside whole tiles: the columns to the right of the whole rows, then the rows below. */
    for (long i = 0; i < size; i++) {
        long from = i < whole_rows ? whole_columns : 0;
        for (long k = 0; k < size && from < size; k++) {
            subtract_scaled(size - from, c + i * size + from, a[i * size + k], b + k * size + from);
        }
    }
}

/* Variants with a constant size for blocks of the usual sizes. */
FOR static void NAME(product)(long size, double *restrict c, const double *restrict a, const double *restrict b) {
    switch (size) {
    case 16:
        return NAME(tiles)(16, c, a, b);
    case 32:
        return NAME(tiles)(32, c, a, b);
    default:
        return NAME(tiles)(size, c, a, b);
    }
}

#undef NAME
#undef FOR
#undef LANES
#undef ROWS
#undef VECTORS
#undef INLINE
