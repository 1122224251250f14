/* Memory of a rank, and windows. */
#include "reference.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

void *allocate(long count, long size) {
    long bytes;
    void *memory = NULL;
    if (count < 0 || size < 0 || __builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, PAGE, &bytes) || !(memory = aligned_alloc(PAGE, bytes / PAGE * PAGE))) {
        die("cannot allocate %ld times %ld bytes", count, size);
    }
    return memset(memory, 0, bytes / PAGE * PAGE);
}

static void *cleared(void *mine, long bytes) {
    memset(mine, 0, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    return mine;
}

void *window_open(long bytes, MPI_Win *win) {
    /* At least a page: with MPICH 4.0.2 the owner of a window of 8 bytes does not see puts to it. */
    void *mine;
    MPI_Win_allocate(bytes < PAGE ? PAGE : bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, win);
    return cleared(mine, bytes);
}

void *window_open_shared(long bytes, MPI_Win *win) {
    void *mine;
    MPI_Info apart; /* each rank's part is page-aligned */
    MPI_Info_create(&apart);
    MPI_Info_set(apart, "alloc_shared_noncontig", "true");
    MPI_Win_allocate_shared(bytes < PAGE ? PAGE : bytes, 1, apart, MPI_COMM_WORLD, &mine, win);
    MPI_Info_free(&apart);
    return cleared(mine, bytes);
}

void *window_of(MPI_Win win, int rank) {
    MPI_Aint bytes;
    int unit;
    void *part;
    MPI_Win_shared_query(win, rank, &bytes, &unit, &part);
    return part;
}
