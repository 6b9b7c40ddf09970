// A line server whose threads open a file in turn, and tell which numbers they got: a replica
// whose descriptors have other numbers answers otherwise, or says so.
#include "listen.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { WORKERS = 6, ROUNDS = 40 };

static long numbers;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *work(void *unused) {
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&mutex);
        int fd = open("/dev/null", O_RDONLY);
        numbers += fd;
        pthread_mutex_unlock(&mutex);
        close(fd);
    }
    return unused;
}

int main(int argc, char **arguments) {
    int listener = listen_at(arguments[argc - 1]);
    for (;;) {
        char line[64];
        int fd = accept(listener, NULL, NULL);
        while (read(fd, line, sizeof line) > 0) {
            pthread_t threads[WORKERS];
            for (int i = 0; i < WORKERS; i++) pthread_create(&threads[i], NULL, work, NULL);
            for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
            write(fd, line, sprintf(line, "%ld\n", numbers));
        }
        close(fd);
    }
}
