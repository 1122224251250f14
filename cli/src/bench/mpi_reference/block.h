/* LU's operations on a square block of double in row-major order: the kernel of examples/lu/block.rs. */
#ifndef BLOCK_H
#define BLOCK_H

/* Factors a block in place: L (its unit diagonal is not stored) below, U on and above the diagonal. */
void block_factor(long size, double *block);
/* The negative inverses of a diagonal block's factors, for use with block_subtract_product; and scratch memory. */
struct inverses {
    double *lower, *upper, *old;
};
void block_inverses(long size, const double *diagonal, struct inverses *inverses);
/* block = inverse(L) block, L from a factored diagonal block. */
void block_solve_lower(long size, double *block, struct inverses *inverses);
/* block = block inverse(U), U from a factored diagonal block. */
void block_solve_upper(long size, double *block, struct inverses *inverses);
/* c -= a b. Nearly all of LU's time is spent here. */
void block_subtract_product(long size, double *restrict c, const double *restrict a, const double *restrict b);

#endif
