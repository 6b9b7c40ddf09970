// A line server that signals come to while it makes no call, and others while it blocks them.
#define _GNU_SOURCE
#include "listen.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

static const long WORK = 3L << 30;

static volatile sig_atomic_t handled, opened;

static void note(int signal) {
    if (signal == SIGHUP) opened++;
    else handled++;
}

static sigset_t only(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    return set;
}

int main(int argc, char **arguments) {
    struct timespec now = {0};
    sigset_t awaited = only(SIGUSR2), read_only = only(SIGTERM), blocked = awaited, others;
    sigaddset(&blocked, SIGTERM);
    others = blocked;
    sigaddset(&blocked, SIGHUP);
    sigprocmask(SIG_BLOCK, &blocked, 0);
    signal(SIGUSR1, note);
    signal(SIGHUP, note);
    int listener = listen_at(arguments[argc - 1]), signals = signalfd(-1, &read_only, SFD_NONBLOCK);
    for (;;) {
        char question, line[32];
        int fd = accept(listener, 0, 0), counter = 0;
        while (read(fd, &question, 1) == 1) {
            struct signalfd_siginfo info = {0};
            if (question == 'b')
                for (volatile long i = 0; i < WORK; i++) {}
            if (question == 'w') snprintf(line, sizeof line, "took %d\n", sigtimedwait(&awaited, 0, &now));
            else if (question == 'o') ppoll(0, 0, &now, &others), snprintf(line, sizeof line, "opened %d\n", opened);
            else if (question == 'r') read(signals, &info, sizeof info), snprintf(line, sizeof line, "read %d\n", info.ssi_signo);
            else if (question == 't') snprintf(line, sizeof line, "tsc %d\n", (prctl(PR_GET_TSC, &counter), counter));
            else time(0), snprintf(line, sizeof line, "handled %d\n", handled);
            if (write(fd, line, strlen(line)) < 0) break;
        }
        close(fd);
    }
}
