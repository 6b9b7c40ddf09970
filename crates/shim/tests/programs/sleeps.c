// A line server beside a thread that looks now and then, without a lock, how many
// lines there were, and sleeps long: what it sees was so before it slept, although
// its sleep ends behind lines that came meanwhile.
#include "listen.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { WORK = 2000000, SLEEP_US = 60000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long lines;

static void *look(void *unused) {
    for (long last = 0, seen = 0;; last = seen) {
        pthread_mutex_lock(&lock);
        pthread_mutex_unlock(&lock);
        // Long enough for a replica that is behind to come to the next lines.
        for (volatile int i = 0; i < WORK; i++) {}
        seen = atomic_load_explicit(&lines, memory_order_relaxed);
        if (seen != last) {
            pthread_mutex_lock(&lock);
            pthread_mutex_unlock(&lock);
        }
        usleep(SLEEP_US);
    }
    return unused;
}

int main(int argc, char **arguments) {
    int listener = listen_at(arguments[argc - 1]);
    pthread_t thread;
    pthread_create(&thread, NULL, look, NULL);
    for (;;) {
        char line[64];
        int fd = accept(listener, NULL, NULL);
        while (read(fd, line, sizeof line) > 0) {
            long n = atomic_fetch_add_explicit(&lines, 1, memory_order_relaxed);
            write(fd, line, sprintf(line, "%ld\n", n));
        }
        close(fd);
    }
}
