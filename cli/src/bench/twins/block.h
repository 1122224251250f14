/* A square block of double, row by row, and what LU does with it: the kernel of examples/lu/block.rs. */
#ifndef BLOCK_H
#define BLOCK_H

/* Factors a block: L (with ones on its diagonal, not stored) below, U on and above the diagonal. */
void block_factor(long size, double *block);
/* The inverses of a diagonal block's factors, negative, so that what they multiply can be subtracted; and room. */
struct inverses {
    double *lower, *upper, *old;
};
void block_inverses(long size, const double *diagonal, struct inverses *inverses);
/* block = inverse(L) block, L from a factored diagonal block. */
void block_solve_lower(long size, double *block, struct inverses *inverses);
/* block = block inverse(U), U from a factored diagonal block. */
void block_solve_upper(long size, double *block, struct inverses *inverses);
/* c -= a b, where nearly all of the time goes. */
void block_subtract_product(long size, double *restrict c, const double *restrict a, const double *restrict b);

#endif
