// A line server that counts, beside a thread that looks at the count when it is told
// to, without a lock, and sleeps long: what it has seen was so before it slept, although
// its sleep ends behind what changed it meanwhile.
#include "listen.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { WORK = 3000000, SLEEP_US = 500000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static int looks;
static atomic_long count;

static void *look(void *unused) {
    long last = 0;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (looks == 0) pthread_cond_wait(&told, &lock);
        looks--;
        pthread_mutex_unlock(&lock);
        // Long enough for a replica that is behind to come to the next line.
        for (volatile int i = 0; i < WORK; i++) {}
        long seen = atomic_load_explicit(&count, memory_order_relaxed);
        if (seen != last) {
            pthread_mutex_lock(&lock);
            pthread_mutex_unlock(&lock);
        }
        last = seen;
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
            long n = atomic_load_explicit(&count, memory_order_relaxed);
            if (line[0] == 'l') {
                pthread_mutex_lock(&lock);
                looks++;
                pthread_cond_signal(&told);
                pthread_mutex_unlock(&lock);
            } else if (line[0] == 'c') {
                atomic_store_explicit(&count, ++n, memory_order_relaxed);
            }
            write(fd, line, sprintf(line, "%ld\n", n));
        }
        close(fd);
    }
}
