// A line server whose threads meet in every way that libc offers. Each request
// makes rounds of work whose outcome depends on who came first, and is answered
// with a digest of the order in which all threads have come so far.
#define _GNU_SOURCE
#include "listen.h"
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 4, ROUNDS = 40 };

static uint64_t digest = 14695981039346656037u;
static int rounds, finished, serials, firsts, late, busy, chosen = -1, ended;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static once_flag flag = ONCE_FLAG_INIT;
static pthread_spinlock_t spin;
static pthread_barrier_t barrier;
static mtx_t c11;
static cnd_t c11_changed;
static sem_t slots;
static int bell, pipes[2];
static __thread int me;

// The caller holds the mutex.
static void note(int what) { digest = (digest ^ (uint64_t)(what * 16 + me)) * 1099511628211u; }

static void locked_note(int what) {
    pthread_mutex_lock(&mutex);
    note(what);
    pthread_mutex_unlock(&mutex);
}

static struct timespec soon(clockid_t clock, long ns) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += ns;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

static void choose(void) {
    locked_note(1);
    chosen = me;
}

static void first(void) {
    pthread_mutex_lock(&mutex);
    firsts++;
    note(2);
    pthread_mutex_unlock(&mutex);
}

static void mutexes(void) {
    struct timespec t = soon(CLOCK_REALTIME, 50000), m = soon(CLOCK_MONOTONIC, 50000);
    if (pthread_mutex_trylock(&mutex) == 0)
        note(3), pthread_mutex_unlock(&mutex);
    else
        __atomic_add_fetch(&busy, 1, __ATOMIC_RELAXED);
    int timed = pthread_mutex_timedlock(&mutex, &t);
    if (timed == 0) note(4), pthread_mutex_unlock(&mutex);
    int by_clock = pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &m);
    if (by_clock == 0) note(5), pthread_mutex_unlock(&mutex);
    pthread_mutex_lock(&mutex);
    late += (timed != 0) + (by_clock != 0);
    pthread_mutex_unlock(&mutex);
}

static void readers_and_writers(void) {
    static uint64_t shared;
    struct timespec t = soon(CLOCK_REALTIME, 50000);
    pthread_rwlock_rdlock(&rwlock);
    uint64_t seen = shared;
    pthread_rwlock_unlock(&rwlock);
    int r = me % 2 ? pthread_rwlock_trywrlock(&rwlock) : pthread_rwlock_timedwrlock(&rwlock, &t);
    if (r != 0) return;
    shared = shared * 31 + seen + me;
    int mine = (int)(shared % 1000);
    pthread_rwlock_unlock(&rwlock);
    locked_note(mine);
}

static void spinning(void) {
    static int turns;
    if (me % 2)
        pthread_spin_lock(&spin);
    else if (pthread_spin_trylock(&spin) != 0)
        return;
    turns = turns * 7 + me;
    int mine = turns;
    pthread_spin_unlock(&spin);
    locked_note(mine & 0xffff);
}

static void eleven(void) {
    struct timespec t = soon(CLOCK_REALTIME, 200000), nap = {0, 1000};
    if (mtx_trylock(&c11) == thrd_busy && mtx_timedlock(&c11, &t) != thrd_success) return;
    int woken = cnd_timedwait(&c11_changed, &c11, &t);
    mtx_unlock(&c11);
    mtx_lock(&c11);
    cnd_broadcast(&c11_changed);
    mtx_unlock(&c11);
    thrd_sleep(&nap, NULL);
    locked_note(100 + woken);
}

static void signals_of_all_kinds(void) {
    uint64_t rings = me, value = 0;
    char letter = (char)('a' + me), got = 0;
    sem_wait(&slots);
    write(bell, &rings, sizeof rings);
    write(pipes[1], &letter, 1);
    read(pipes[0], &got, 1);
    if (read(bell, &value, sizeof value) < 0) value = 0;
    sem_post(&slots);
    locked_note((int)(value * 32) + got);
}

static void *work(void *number) {
    me = (int)(intptr_t)number;
    for (int done = 0;;) {
        pthread_mutex_lock(&mutex);
        while (rounds == done) pthread_cond_wait(&changed, &mutex);
        done++;
        note(6);
        pthread_mutex_unlock(&mutex);
        pthread_once(&once, choose);
        call_once(&flag, first);
        mutexes();
        readers_and_writers();
        spinning();
        eleven();
        signals_of_all_kinds();
        if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
            pthread_mutex_lock(&mutex);
            serials++;
            note(7);
            pthread_mutex_unlock(&mutex);
        }
        pthread_mutex_lock(&mutex);
        finished++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
    }
}

// Ends in the middle of a function, as its own number allows.
static void *brief(void *number) {
    me = (int)(intptr_t)number;
    pthread_mutex_lock(&mutex);
    ended++;
    note(8);
    pthread_mutex_unlock(&mutex);
    if (me % 2) pthread_exit(NULL);
    return NULL;
}

static int brief_c11(void *number) {
    brief(number);
    return 9;
}

// Nobody ever rings for this one.
static void *blocked(void *unused) {
    char c;
    int never[2];
    (void)unused;
    pipe(never);
    read(never[0], &c, 1);
    return NULL;
}

static int answer(char *line) {
    static int wanted;
    pthread_t a;
    thrd_t b;
    int result = 0;
    pthread_create(&a, NULL, brief, (void *)5);
    thrd_create(&b, brief_c11, (void *)6);
    while (pthread_tryjoin_np(a, NULL) != 0) usleep(100);
    thrd_join(b, &result);
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&mutex);
        rounds++;
        pthread_cond_broadcast(&changed);
        wanted += WORKERS;
        while (finished < wanted) {
            struct timespec t = soon(CLOCK_REALTIME, 1000000);
            if (pthread_cond_timedwait(&changed, &mutex, &t) == ETIMEDOUT) note(9);
        }
        pthread_mutex_unlock(&mutex);
    }
    return sprintf(line, "%d rounds %d serial %d first %d ended %d, digest %016lx late %d chosen %d\n",
                   rounds, serials, firsts, ended, result, (unsigned long)digest, late, chosen);
}

int main(int count, char **arguments) {
    pthread_t thread;
    int listener = listen_at(arguments[count - 1]);
    pthread_spin_init(&spin, 0);
    pthread_barrier_init(&barrier, NULL, WORKERS);
    mtx_init(&c11, mtx_timed);
    cnd_init(&c11_changed);
    sem_init(&slots, 0, 2);
    bell = eventfd(0, EFD_NONBLOCK);
    pipe(pipes);
    pthread_create(&thread, NULL, blocked, NULL);
    for (int i = 1; i <= WORKERS; i++) pthread_create(&thread, NULL, work, (void *)(intptr_t)i);
    for (;;) {
        char line[4096];
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) continue;
        while (read(fd, line, sizeof line) > 0) write(fd, line, answer(line));
        close(fd);
    }
}
