// A line server that tries what signals do to its calls: each question is a letter, whose
// answer says what has happened. A timer of its own sends the signals.
#define _GNU_SOURCE
#include "listen.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SOON_US = 10000, WAIT_MS = 200, WORK = 200000, LONG_WORK = 600 * WORK, LOOKS = 20000 };

static volatile sig_atomic_t rung, depth, deepest;
static int quiet[2];

static long now_ms(void) {
    struct timeval t;
    gettimeofday(&t, 0);
    return t.tv_sec * 1000L + t.tv_usec / 1000;
}

static void note(int signal) { rung += signal == SIGALRM; }

static void handle(void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigfillset(&action.sa_mask);
    sigaction(SIGALRM, &action, 0);
}

static void ring_in(int first_us, int then_us) {
    struct itimerval t = {.it_value.tv_usec = first_us, .it_interval.tv_usec = then_us};
    rung = 0;
    setitimer(ITIMER_REAL, &t, 0);
}

static int polls(void) {
    struct pollfd p = {.fd = quiet[0], .events = POLLIN};
    int r = 0;
    while (!rung) r = poll(&p, 1, -1);
    return r == -1 && errno == EINTR;
}

static int selects(void) {
    int r = 0;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(quiet[0], &set);
    while (!rung) r = select(quiet[0] + 1, &set, 0, 0, 0);
    return r == -1 && errno == EINTR && FD_ISSET(quiet[0], &set);
}

// The timer rings more often than the time limit, and ends the wait each time.
static int epolls(void) {
    struct epoll_event e = {.events = EPOLLIN};
    int set = epoll_create1(0), ended = 0;
    epoll_ctl(set, EPOLL_CTL_ADD, quiet[0], &e);
    while (rung < 5) ended += epoll_wait(set, &e, 1, WAIT_MS) == -1 && errno == EINTR;
    close(set);
    return ended > 0;
}

// What is ready is told, although a handler has run just before.
static int ready(void) {
    struct pollfd p = {.fd = quiet[1], .events = POLLOUT};
    int right = 1;
    while (!rung) {
        for (volatile int i = 0; i < WORK; i++) {}
        right &= poll(&p, 1, -1) == 1;
    }
    return right;
}

// Runs longer than the timer needs to ring again, and asks for the time all along.
static void dwell(int signal) {
    note(signal);
    if (++depth > deepest) deepest = depth;
    for (int i = 0; depth == 1 && i < LOOKS; i++) now_ms();
    depth--;
}

static int nests(void) {
    deepest = 0;
    handle(dwell, 0);
    while (rung < 5) now_ms();
    return deepest == 1;
}

// A signal that came before the server blocked it, and whose handler had no call to run at, waits
// until the server lets it come.
static int waits_for_the_mask(void) {
    sigset_t alarms, before, waiting;
    int during = 0;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    for (volatile int i = 0; i < LONG_WORK; i++) {}
    sigprocmask(SIG_BLOCK, &alarms, &before);
    for (int i = 0; i < 10; i++) now_ms(), during += rung;
    sigpending(&waiting);
    int is_kept = sigismember(&waiting, SIGALRM);
    sigprocmask(SIG_SETMASK, &before, 0);
    now_ms();
    return during == 0 && is_kept == 1 && rung == 1;
}

// Blocked but for the time in which the server waits for it.
static int comes_in_a_wait(void) {
    sigset_t alarms, before;
    struct timespec limit = {.tv_sec = 5};
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarms, &before);
    for (volatile int i = 0; i < LONG_WORK; i++) {}
    now_ms();
    int r = rung ? 0 : ppoll(0, 0, &limit, &before);
    int is_right = r == -1 && errno == EINTR && rung == 1;
    ring_in(SOON_US, 0);
    r = sigsuspend(&before);
    sigprocmask(SIG_SETMASK, &before, 0);
    return is_right && r == -1 && rung == 1;
}

static int tried(char question) {
    int right = 0;
    handle(note, SA_RESTART);
    ring_in(SOON_US, strchr("en", question) ? SOON_US / 4 : 0);
    switch (question) {
    case 'p': right = polls(); break;
    case 's': right = selects(); break;
    case 'e': right = epolls(); break;
    case 'r': right = ready(); break;
    case 'n': right = nests(); break;
    case 'm': right = waits_for_the_mask(); break;
    case 'w': right = comes_in_a_wait(); break;
    }
    ring_in(0, 0);
    return right;
}

int main(int argc, char **arguments) {
    int listener = listen_at(arguments[argc - 1]);
    if (pipe(quiet)) return 1;
    for (;;) {
        char question, line[32];
        int fd = accept(listener, 0, 0);
        while (read(fd, &question, 1) == 1)
            write(fd, line, sprintf(line, "%c %s\n", question, tried(question) ? "right" : "wrong"));
        close(fd);
    }
}
