// A line server that counts in four threads without a lock, and tells what it
// counted: the replica cannot know how often they came between each other.
#include "listen.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

// Many: threads that each ended before the next began would race with nobody.
enum { STEPS = 200000 };

static volatile long count;

static void *add(void *unused) {
    for (int i = 0; i < STEPS; i++) {
        long seen = count;
        if (i % 16 == 0) sched_yield();
        count = seen + 1;
    }
    return unused;
}

int main(int argc, char **arguments) {
    int listener = listen_at(arguments[argc - 1]);
    for (;;) {
        char line[64];
        int fd = accept(listener, NULL, NULL);
        while (read(fd, line, sizeof line) > 0) {
            pthread_t threads[4];
            for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, add, NULL);
            for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
            write(fd, line, sprintf(line, "%ld\n", count));
        }
        close(fd);
    }
}
