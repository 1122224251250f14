/* The end of a rank that fails, is terminated, whose mpirun has ended, or that crashes in its library. In the last three
   cases it removes the library's segments in /dev/shm, because the library does not. */
#include "reference.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Removes every file in /dev/shm that this process has mapped. Uses only async-signal-safe calls. */
static void remove_segments(void) {
    static char line[8192];
    int maps = open("/proc/self/maps", O_RDONLY);
    size_t length = 0;
    char byte;
    while (maps >= 0 && read(maps, &byte, 1) == 1) {
        if (byte != '\n') {
            if (length < sizeof line - 1) {
                line[length++] = byte;
            }
            continue;
        }
        line[length] = 0;
        length = 0;
        char *path = strstr(line, " /dev/shm/");
        if (path && !strstr(path, " (deleted)")) {
            unlink(path + 1);
        }
    }
}

static void leave(int number) {
    remove_segments();
    _exit(128 + number);
}

/* Some libraries crash in some operations. The report of a crash is a result. */
static void crash(int number) {
    static const char told[] = "\ncheck bad unsupported: the MPI library crashed\n";
    ssize_t written = write(STDOUT_FILENO, told, sizeof told - 1);
    (void)written;
    leave(number);
}

void leave_cleanly(void) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const struct { int number; void (*handler)(int); } signals[] = {
        {SIGTERM, leave}, {SIGINT, leave}, {SIGHUP, leave}, {SIGABRT, leave}, {SIGSEGV, crash}, {SIGBUS, crash},
        {SIGFPE, crash},
    };
    for (size_t at = 0; at < sizeof signals / sizeof *signals; at++) {
        struct sigaction action = {.sa_handler = signals[at].handler, .sa_flags = (int)SA_RESETHAND};
        sigaction(signals[at].number, &action, NULL);
    }
}

void die(const char *why, ...) {
    va_list arguments;
    va_start(arguments, why);
    fputs("mpi_reference: ", stderr);
    vfprintf(stderr, why, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}
