/* Adds a number of nanoseconds, read at every call from the file that TENURE_TEST_CLOCK names, to CLOCK_BOOTTIME:
   what a process sees of the clock after its machine was suspended. Preload it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t jump(void) {
    const char *path = getenv("TENURE_TEST_CLOCK");
    int64_t added = 0;
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        if (read(file, &added, sizeof added) != sizeof added) added = 0;
        close(file);
    }
    return added;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_BOOTTIME) {
        int64_t total = now->tv_sec * 1000000000LL + now->tv_nsec + jump();
        now->tv_sec = total / 1000000000;
        now->tv_nsec = total % 1000000000;
    }
    return (int)failed;
}
