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
#include <unistd.h>

enum { SOON_US = 20000, WAIT_MS = 200, WORK = 200000 };

static volatile sig_atomic_t rung;
static int quiet[2];

static void note(int signal) { rung += signal == SIGALRM; }

static void handle(void (*handler)(int), int flags, const sigset_t *mask) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    if (mask) action.sa_mask = *mask;
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

static int tried(char question) {
    int right = 0;
    handle(note, SA_RESTART, 0);
    ring_in(SOON_US, question == 'e' ? SOON_US : 0);
    switch (question) {
    case 'p': right = polls(); break;
    case 's': right = selects(); break;
    case 'e': right = epolls(); break;
    case 'r': right = ready(); break;
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
