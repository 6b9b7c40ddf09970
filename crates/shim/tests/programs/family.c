/* A server of three processes: two workers, which accept at one listener, and their
 * parent, which makes another one when one dies. What a worker answers hangs on what it
 * has served, on a file that all append to under a lock, and on the numbers of processes.
 * One letter a question: n a number from the file, k the worker kills itself, x it exits,
 * f it serves on in a child, p it asks its parent over a pipe, q as k, with a client's
 * connection in both hands of a fork. */
#include "listen.h"
#include "numbers.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORKERS 2

static int listener, asks[2], answers[2];
static volatile sig_atomic_t died;

static void on_child(int signal) { (void)signal; died = 1; }

/* A child's end may interrupt it. */
static ssize_t read_all(int fd, void *to, size_t len) {
    ssize_t n;
    while ((n = read(fd, to, len)) < 0 && errno == EINTR)
        ;
    return n;
}

static void say(int fd, const char *what, int number) {
    static int served;
    struct timespec now;
    char line[128];
    clock_gettime(CLOCK_REALTIME, &now);
    int n = snprintf(line, sizeof line, "%s %d of %d in %d below %d at %ld\n", what, number, ++served,
                     (int)getpid(), (int)getppid(), now.tv_nsec);
    write(fd, line, n);
}

static void serve(int fd) {
    char question = 0;
    while (read_all(fd, &question, 1) == 1) {
        int number = 0;
        switch (question) {
        case 'n':
            say(fd, "number", next_number("numbers"));
            break;
        case 'p':
            write(asks[1], "?", 1);
            read_all(answers[0], &number, sizeof number);
            say(fd, "parent", number);
            break;
        case 'f':
            if (fork() == 0) {
                say(fd, "child", next_number("numbers"));
                continue;
            }
            close(fd);
            return;
        case 'k':
            say(fd, "dies", 0);
            kill(getpid(), SIGKILL);
            break;
        case 'x':
            say(fd, "exits", 0);
            exit(3);
        }
    }
    close(fd);
}

static void work(void) {
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0)
            serve(fd);
    }
}

static void make_worker(void) {
    if (fork() == 0)
        work();
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = on_child};
    listener = listen_at(argc > 1 ? argv[1] : "0");
    sigaction(SIGCHLD, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    pipe(asks);
    pipe(answers);
    for (int i = 0; i < WORKERS; i++)
        make_worker();
    for (int number = 0;;) {
        char question;
        if (read(asks[0], &question, 1) == 1) {
            number++;
            write(answers[1], &number, sizeof number);
        }
        if (died) {
            int status;
            died = 0;
            while (waitpid(-1, &status, WNOHANG) > 0)
                make_worker();
        }
    }
}
