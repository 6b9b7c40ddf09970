// A line server that signals come to while it makes no call, and others while it blocks them.
#define _GNU_SOURCE
#include "listen.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { WORK = 1 << 30 };

static volatile sig_atomic_t handled;

static void note(int signal) { handled++; }

int main(int argc, char **arguments) {
    struct timespec now = {0};
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_BLOCK, &blocked, 0);
    signal(SIGUSR1, note);
    int listener = listen_at(arguments[argc - 1]);
    for (;;) {
        char question, line[32];
        int fd = accept(listener, 0, 0), counter = 0;
        while (read(fd, &question, 1) == 1) {
            if (question == 'b')
                for (volatile int i = 0; i < WORK; i++) {}
            if (question == 'w') snprintf(line, sizeof line, "took %d\n", sigtimedwait(&blocked, 0, &now));
            else if (question == 't') snprintf(line, sizeof line, "tsc %d\n", (prctl(PR_GET_TSC, &counter), counter));
            else time(0), snprintf(line, sizeof line, "handled %d\n", handled);
            if (write(fd, line, strlen(line)) < 0) break;
        }
        close(fd);
    }
}
