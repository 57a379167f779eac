/* Lets a process see other clocks than the machine's. Preload it (LD_PRELOAD).

   The file that TENURE_CLOCK names is mapped into memory and may be rewritten at any time: it holds two settings,
   and says which of them counts, so that no half-written setting is ever read. The layout is the one of clock.py.
   CLOCK_REALTIME becomes  wall_base + (now - real_base) * rate;  the steady clocks get a number of nanoseconds added.

   The real clocks are read by a system call and not by the C library: a memory allocator may ask for the time before
   this file, or the library's own loader, is ready. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

struct setting {
    int64_t real_base;
    int64_t wall_base;
    double rate;
    int64_t monotonic;
    int64_t boot;
};

struct settings {
    int64_t counts; /* 0 or 1 */
    struct setting setting[2];
};

static volatile struct settings *settings;

__attribute__((constructor)) static void map_settings(void) {
    const char *path = getenv("TENURE_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(struct settings), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) settings = mapped;
}

static int64_t added(clockid_t clock, int64_t now) {
    if (!settings) return 0;
    volatile struct setting *setting = &settings->setting[settings->counts & 1];
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE: {
        int64_t passed = now - setting->real_base;
        if (setting->rate != 1.0) passed = (int64_t)((double)passed * setting->rate);
        return setting->wall_base + passed - now;
    }
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
        return setting->monotonic;
    case CLOCK_BOOTTIME:
        return setting->boot;
    default:
        return 0;
    }
}

int clock_gettime(clockid_t clock, struct timespec *result) {
    struct timespec real;
    long failed = syscall(SYS_clock_gettime, clock, &real);
    if (failed) return -1;
    int64_t now = real.tv_sec * SECOND + real.tv_nsec;
    now += added(clock, now);
    result->tv_sec = now / SECOND;
    result->tv_nsec = now % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict result, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    result->tv_sec = now.tv_sec;
    result->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
