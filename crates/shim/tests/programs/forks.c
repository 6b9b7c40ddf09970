// A line server whose children work on files and pipes, and one that talks to
// somebody at the port before its own.
#define _GNU_SOURCE
#include "listen.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOW_MS = 1200 };

static int port, listener;
static pid_t slow;

static void sleep_ms(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static void content(char *out, const char *name, int room) {
    int fd = open(name, O_RDONLY), n = fd < 0 ? -1 : read(fd, out, room - 1);
    out[n < 0 ? 0 : n] = 0;
    close(fd);
}

// The child's file has its number in its name.
static pid_t writer(int ms) {
    pid_t pid = fork();
    if (pid) return pid;
    char name[64];
    close(listener);
    sleep_ms(ms);
    sprintf(name, "temp-%d", getpid());
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    write(fd, "written", 7);
    close(fd);
    _exit(3);
}

static int taken(char *out, pid_t pid, int status) {
    char name[64], kept[64], text[32] = "";
    sprintf(name, "temp-%d", pid);
    sprintf(kept, "kept-%d", pid);
    int renamed = rename(name, kept), again = rename(name, kept);
    content(text, kept, sizeof text);
    unlink(kept);
    return sprintf(out, "%d %d %d %s\n", WEXITSTATUS(status), renamed, again, text);
}

static int write_and_wait(char *out) {
    int status = 0;
    pid_t pid = writer(5), r;
    while ((r = waitpid(-1, &status, WNOHANG)) == 0) sleep_ms(1);
    return r == pid ? taken(out, pid, status) : sprintf(out, "%d is not %d\n", r, pid);
}

static int kill_and_wait(char *out) {
    siginfo_t info = {0};
    pid_t pid = fork();
    if (pid == 0)
        for (;;) pause();
    kill(pid, SIGTERM);
    int r = waitid(P_PID, pid, &info, WEXITED);
    return sprintf(out, "%d %d %d\n", r, info.si_pid == pid, info.si_status);
}

static int start_slow(char *out) {
    slow = writer(SLOW_MS);
    return sprintf(out, "started\n");
}

static int finish_slow(char *out) {
    int status = 0;
    pid_t r = wait(&status);
    int none = wait(NULL);
    if (r != slow || none != -1 || errno != ECHILD) return sprintf(out, "%d is not %d\n", r, slow);
    return taken(out, r, status);
}

static int talk(char *out) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port - 1)};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        _exit(connect(fd, (void *)&at, sizeof at) ? 1 : 7);
    }
    waitpid(pid, &status, 0);
    return sprintf(out, "%d\n", WEXITSTATUS(status));
}

static int pipes(char *out) {
    char text[32] = "";
    int ends[2];
    pipe(ends);
    pid_t pid = fork();
    if (pid == 0) {
        write(ends[1], "piped", 5);
        _exit(0);
    }
    close(ends[1]);
    int n = read(ends[0], text, sizeof text - 1), end = read(ends[0], text, 0);
    close(ends[0]);
    waitpid(pid, NULL, 0);
    return sprintf(out, "%d %d %s\n", n, end, text);
}

// A child with namespaces, as vsftpd first wants it.
static int isolate(char *out) {
    long r = syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWIPC | SIGCHLD, 0, 0, 0, 0);
    if (r == 0) _exit(0);
    return sprintf(out, "%ld %d\n", r, errno);
}

int main(int count, char **arguments) {
    listener = listen_at(arguments[count - 1]);
    port = atoi(arguments[count - 1]);
    for (;;) {
        char line[256];
        int fd = accept(listener, NULL, NULL), n = 0;
        if (read(fd, line, sizeof line) > 0) {
            switch (*line) {
            case 'w': n = write_and_wait(line); break;
            case 'k': n = kill_and_wait(line); break;
            case 's': n = start_slow(line); break;
            case 'f': n = finish_slow(line); break;
            case 'n': n = isolate(line); break;
            case 't': n = talk(line); break;
            default: n = pipes(line);
            }
            write(fd, line, n);
        }
        close(fd);
    }
}
