/* A server of three processes: two workers, which share memory, and their parent, which
 * makes another one when one dies. What a worker answers hangs on what both have done to
 * that memory, under a lock of its own make and without one. One letter a question: n a
 * number, k the worker kills itself, t it dies in the middle of its work, w it computes
 * until the other one has been told g, f it waits in libc for what the other one writes
 * when it is told p, s it races around waits for the disk. */
#include "listen.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 2
#define STEPS 200
#define RACES 10000
#define SYNCS 30

static struct {
    int lock;
    volatile int waits, go;
    volatile long count;
    volatile unsigned long mixed;
} *shared;

static int listener, channel[2];
static FILE *stream;

static void take_lock(void) {
    for (int n = 1; __atomic_exchange_n(&shared->lock, 1, __ATOMIC_ACQUIRE); n++)
        if (n % 100 == 0)
            usleep(100);
}

static void give_lock(void) { __atomic_store_n(&shared->lock, 0, __ATOMIC_RELEASE); }

static void count(int own) {
    for (int i = 0; i < STEPS; i++) {
        take_lock();
        shared->mixed = shared->mixed * 31 + own;
        if (i % 50 == 0)
            usleep(50);
        give_lock();
        long seen = shared->count;
        if (i % 20 == 0)
            usleep(0);
        shared->count = seen + 1;
        for (int n = 0; n < RACES; n++)
            shared->mixed = shared->mixed * 33 + own;
    }
}

static void sync_often(int own) {
    int file = open("shared.sync", O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < SYNCS; i++) {
        long seen = shared->count;
        pwrite(file, &seen, sizeof seen, 0);
        if (i % 2 ? fsync(file) : fdatasync(file))
            own = -1;
        shared->count = seen + 1;
        shared->mixed = shared->mixed * 31 + own;
    }
    close(file);
}

static void serve(int fd, int own) {
    char question = 0, line[64];
    while (read(fd, &question, 1) == 1) {
        int extra = 0;
        switch (question) {
        case 'n':
            count(own);
            break;
        case 'k':
            kill(getpid(), SIGKILL);
            break;
        case 't':
            __builtin_trap();
        case 's':
            sync_often(own);
            break;
        case 'w':
            shared->waits = 1;
            while (!shared->go)
                ;
            shared->go = 0;
            break;
        case 'g':
            while (!shared->waits)
                usleep(1000);
            shared->waits = 0;
            shared->go = 1;
            break;
        case 'f':
            extra = fgetc(stream);
            break;
        case 'p':
            write(channel[1], "x", 1);
            break;
        }
        write(fd, line, sprintf(line, "%ld %lu %d\n", shared->count, shared->mixed, extra));
    }
    close(fd);
}

static void make_worker(int own) {
    if (fork() == 0)
        for (;;) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0)
                serve(fd, own);
        }
}

int main(int argc, char **argv) {
    int own = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    listener = listen_at(argc > 1 ? argv[1] : "0");
    signal(SIGPIPE, SIG_IGN);
    pipe(channel);
    stream = fdopen(channel[0], "r");
    setvbuf(stream, NULL, _IONBF, 0);
    while (own < WORKERS)
        make_worker(own++);
    for (;;) {
        int status;
        if (waitpid(-1, &status, 0) > 0)
            make_worker(own++);
    }
}
