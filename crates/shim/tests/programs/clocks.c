// A line server that reads clocks all the time, in two threads, and answers with
// a sum of what the one that serves has seen: the replica must see the same.
#include "listen.h"
#include <pthread.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { READINGS = 700 };

static const clockid_t clocks[] = {
    CLOCK_MONOTONIC, CLOCK_REALTIME,         CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID,
    CLOCK_BOOTTIME,  CLOCK_REALTIME_COARSE,  CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID,
};

static unsigned long sum(void) {
    unsigned long all = 0;
    for (int i = 0; i < READINGS; i++) {
        struct timespec t;
        struct timeval v;
        clock_gettime(clocks[i % (sizeof clocks / sizeof *clocks)], &t);
        gettimeofday(&v, NULL);
        all = all * 31 + t.tv_nsec + v.tv_usec + (i % 5 ? 0 : time(NULL));
    }
    return all;
}

static void *beside(void *unused) {
    for (;;) {
        struct timespec t, pause = {0, 200000};
        for (int i = 0; i < 10; i++) clock_gettime(CLOCK_MONOTONIC, &t);
        nanosleep(&pause, NULL);
    }
    return unused;
}

int main(int argc, char **arguments) {
    int listener = listen_at(arguments[argc - 1]);
    pthread_t thread;
    pthread_create(&thread, NULL, beside, NULL);
    for (;;) {
        char line[64];
        int fd = accept(listener, NULL, NULL);
        while (read(fd, line, sizeof line) > 0) write(fd, line, sprintf(line, "%lu\n", sum()));
        close(fd);
    }
}
