// A line server with one thread in each way to wait. "go" ends all waits, and is
// answered with how many came back with what they had to. With a second argument it is
// without the two that no image holds: a child, and a pair of sockets.
#define _GNU_SOURCE
#include "listen.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FAR_S = 1000000 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER, owned = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t slots;
static int go, back, wrong, bell[2], pipes[3][2], pairs[2][2], full[2], listener;
static char block[65536], alternate[65536];
static pthread_t sleeper;
static pid_t child;
static int is_copied;

// What a thread's wait has led to.
static void done(const char *name, int right) {
    if (!right) fprintf(stderr, "%s: errno %d %s\n", name, errno, strerror(errno));
    pthread_mutex_lock(&mutex);
    back++, wrong += !right;
    pthread_mutex_unlock(&mutex);
}

static struct timespec far(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_sec += FAR_S;
    return t;
}

static int on_condition(int timed) {
    struct timespec end = far(CLOCK_REALTIME), by_clock = far(CLOCK_MONOTONIC);
    int r = 0;
    pthread_mutex_lock(&held);
    while (!go && r == 0)
        r = timed == 0   ? pthread_cond_wait(&condition, &held)
            : timed == 1 ? pthread_cond_timedwait(&condition, &held, &end)
                         : pthread_cond_clockwait(&condition, &held, CLOCK_MONOTONIC, &by_clock);
    pthread_mutex_unlock(&held);
    return r == 0;
}

static int counts(int event) {
    uint64_t one = 0;
    return read(event, &one, sizeof one) == sizeof one && one == 1;
}

static int epoll(void) {
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 77};
    int set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, bell[0], &e);
    e.data.u64 = 0;
    return epoll_wait(set, &e, 1, -1) == 1 && e.data.u64 == 77;
}

static int polls(void) {
    struct pollfd p = {.fd = pipes[0][0], .events = POLLIN};
    return poll(&p, 1, FAR_S) == 1 && p.revents == POLLIN;
}

static int selects(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pipes[1][0], &set);
    return select(pipes[1][0] + 1, &set, 0, 0, 0) == 1 && FD_ISSET(pipes[1][0], &set);
}

static int reads(void) {
    char byte = 0;
    return read(pipes[2][0], &byte, 1) == 1 && byte == 'r';
}

static int receives(void) {
    char text[8] = {0};
    struct iovec part = {text, sizeof text};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    return recvmsg(pairs[0][1], &m, 0) == 3 && !strcmp(text, "msg");
}

static int writes(void) { return write(full[1], "w", 1) == 1; }

static int accepts(void) { return close(accept(listener, 0, 0)) == 0; }

static int sleeps(void) {
    struct timespec t = {.tv_sec = 1, .tv_nsec = 500000000}, left = {0};
    return nanosleep(&t, &left) == 0;
}

static int locks(void) { return pthread_mutex_lock(&owned) || pthread_mutex_unlock(&owned) ? 0 : 1; }

static int timed_locks(void) {
    struct timespec end = far(CLOCK_MONOTONIC);
    return pthread_mutex_clocklock(&owned, CLOCK_MONOTONIC, &end) == 0 && pthread_mutex_unlock(&owned) == 0;
}

static int reader(void) { return pthread_rwlock_rdlock(&rwlock) == 0 && pthread_rwlock_unlock(&rwlock) == 0; }

static int writer(void) {
    struct timespec end = far(CLOCK_REALTIME);
    return pthread_rwlock_timedwrlock(&rwlock, &end) == 0 && pthread_rwlock_unlock(&rwlock) == 0;
}

static int semaphore(void) { return sem_wait(&slots) == 0; }

static int timed_semaphore(void) {
    struct timespec end = far(CLOCK_REALTIME);
    return sem_timedwait(&slots, &end) == 0;
}

static int meets(void) {
    int r = pthread_barrier_wait(&barrier);
    return r == 0 || r == PTHREAD_BARRIER_SERIAL_THREAD;
}

static int joins(void) {
    struct timespec end = far(CLOCK_REALTIME);
    return pthread_timedjoin_np(sleeper, 0, &end) == 0;
}

static int waits_for_signal(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return sigwaitinfo(&set, 0) == SIGUSR2;
}

static int waits_for_child(void) {
    int status = 1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

static int plain_condition(void) { return on_condition(0); }
static int timed_condition(void) { return on_condition(1); }
static int clock_condition(void) { return on_condition(2); }

static const struct wait {
    const char *name;
    int (*run)(void);
} waits[] = {
    {"S-epoll", epoll},         {"S-poll", polls},          {"S-select", selects},
    {"S-read", reads},          {"S-write", writes},
    {"S-accept", accepts},      {"S-nanosleep", sleeps},    {"S-sigwait", waits_for_signal},
    {"T-cond", plain_condition}, {"T-condtimed", timed_condition}, {"T-condclock", clock_condition},
    {"T-clocklock", timed_locks}, {"T-wrlock", writer},     {"T-semtimed", timed_semaphore},
    {"T-join", joins},
    {"A-lock", locks},          {"A-rdlock", reader},       {"A-sem", semaphore},
    {"A-barrier", meets},
    {"S-recvmsg", receives},    {"S-waitpid", waits_for_child},
};
static int waits_len = sizeof waits / sizeof *waits;

static void *waiter(void *arg) {
    const struct wait *w = arg;
    pthread_setname_np(pthread_self(), w->name);
    done(w->name, w->run());
    return 0;
}

// It ends when told, so that it can be waited for.
static void *until_told(void *arg) {
    (void)arg;
    pthread_setname_np(pthread_self(), "S-told");
    counts(bell[1]);
    return 0;
}

static void handle(int signal) { (void)signal; }

static void prepare(int port) {
    sigset_t set;
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, 0);
    sigaction(SIGUSR1, &action, 0);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, 0);
    for (int i = 0; i < 2; i++) bell[i] = eventfd(0, 0);
    for (int i = 0; i < 3; i++)
        if (pipe(pipes[i])) exit(1);
    if (pipe(full)) exit(1);
    // A pipe without room: one page at a time, as the kernel gives it.
    fcntl(full[1], F_SETFL, O_NONBLOCK);
    while (write(full[1], block, 4096) > 0) continue;
    fcntl(full[1], F_SETFL, 0);
    if (!is_copied) {
        if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pairs[0])) exit(1);
        child = fork();
        if (child == 0) {
            char byte;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(read(pairs[0][0], &byte, 1) == 1 ? 7 : 8);
        }
    } else {
        waits_len -= 2;
    }
    sem_init(&slots, 0, 0);
    pthread_barrier_init(&barrier, 0, 2);
    pthread_mutex_lock(&owned);
    pthread_rwlock_wrlock(&rwlock);
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // A survivor's has the same again.
    at.sin_port = htons(is_copied ? port + 50 : 0);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 1)) exit(1);
}

static void end_all(void) {
    uint64_t one = 1;
    pthread_mutex_lock(&held);
    go = 1;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&held);
    pthread_mutex_unlock(&owned);
    pthread_rwlock_unlock(&rwlock);
    sem_post(&slots), sem_post(&slots);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 2; i++)
        if (write(bell[i], &one, sizeof one) != sizeof one) exit(1);
    for (int i = 0; i < 3; i++)
        if (write(pipes[i][1], "r", 1) != 1) exit(1);
    if (!is_copied && (send(pairs[0][0], "msg", 3, 0) != 3 || send(pairs[0][1], "x", 1, 0) != 1)) exit(1);
    if (read(full[0], block, 4096) != 4096) exit(1);
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    getsockname(listener, (void *)&at, &len);
    int c = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c, (void *)&at, len)) exit(1);
    kill(getpid(), SIGUSR2);
    for (;;) {
        pthread_mutex_lock(&mutex);
        int n = back;
        pthread_mutex_unlock(&mutex);
        if (n == waits_len) break;
        usleep(1000);
    }
    close(c);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    is_copied = argc > 2;
    prepare(atoi(argv[1]));
    int service = listen_at(argv[1]);
    pthread_t t;
    pthread_create(&sleeper, 0, until_told, 0);
    for (int i = 0; i < waits_len; i++) pthread_create(&t, 0, waiter, (void *)&waits[i]);
    for (;;) {
        int client = accept(service, 0, 0);
        char line[64], answer[64];
        ssize_t n = read(client, line, sizeof line);
        if (n > 1 && line[0] == 'g') end_all();
        n = snprintf(answer, sizeof answer, "%d back, %d wrong\n", back, wrong);
        if (write(client, answer, n) != n) return 1;
        close(client);
    }
}
