// A line server that makes calls by number (`syscall`), as libuv and others do, whose results differ
// from machine to machine and from run to run, and tells its client what came of them.
#define _GNU_SOURCE
#include "listen.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int caught;

static void on_signal(int signal) { caught += signal; }

static int refused(char *out, int client) {
    struct mmsghdr message = {0};
    int r = syscall(SYS_recvmmsg, client, &message, 1, MSG_DONTWAIT, NULL), error = errno;
    int s = syscall(SYS_sendmmsg, client, &message, 1, 0), also = errno;
    return sprintf(out, "refused %d %d %d %d\n", r, error == ENOSYS, s, also == ENOSYS);
}

static int descriptors(char *out, int client) {
    struct epoll_event event = {.events = EPOLLIN};
    int ends[2], set = syscall(SYS_epoll_create1, 0);
    syscall(SYS_pipe2, ends, O_NONBLOCK);
    event.data.ptr = &event;
    syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, ends[0], &event);
    syscall(SYS_write, ends[1], "four", 4);
    int ready = syscall(SYS_epoll_wait, set, &event, 1, 1000), own = event.data.ptr == &event;
    struct pollfd poll = {.fd = ends[0], .events = POLLIN};
    int polled = syscall(SYS_poll, &poll, 1, 0);
    int again = syscall(SYS_dup, ends[0]), other = syscall(SYS_fcntl, client, F_DUPFD, 40);
    char text[8] = "";
    int n = syscall(SYS_read, again, text, 8);
    syscall(SYS_close_range, other, other, 0);
    close(set), close(ends[0]), close(ends[1]), close(again);
    return sprintf(out, "descriptors %d %d %d %d %d %s\n", ready, own, polled, again >= 0, n, text);
}

static int machine(char *out, int client) {
    struct statx x = {0};
    struct stat s = {0};
    struct sockaddr_in at = {.sin_family = AF_INET}, name = {0};
    socklen_t len = sizeof name;
    unsigned long processors[16] = {0};
    struct timespec soon = {0, 1000000};
    int wrong = syscall(SYS_clock_nanosleep, 99, 0, &soon, NULL), error = errno;
    syscall(SYS_statx, AT_FDCWD, ".", 0, STATX_BASIC_STATS, &x);
    syscall(SYS_newfstatat, AT_FDCWD, ".", &s, 0);
    int fd = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    syscall(SYS_bind, fd, &at, sizeof at);
    syscall(SYS_getsockname, fd, &name, &len);
    int bytes = syscall(SYS_sched_getaffinity, 0, sizeof processors, processors);
    close(fd);
    (void)client;
    return sprintf(out, "machine %d %d %d %lu %ld %d\n", wrong, error == EINVAL, bytes > 0,
                   (unsigned long)x.stx_ino ^ s.st_mtim.tv_nsec, s.st_ctim.tv_nsec, name.sin_port);
}

static int signals(char *out, int client) {
    struct { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; }
        action = {.handler = on_signal}, before = {0};
    unsigned long usr2 = 1ul << (SIGUSR2 - 1), mask = 0, pending = 0;
    int r = syscall(SYS_rt_sigaction, SIGUSR2, &action, NULL, 8), at_first = caught;
    syscall(SYS_rt_sigaction, SIGUSR2, NULL, &before, 8);
    syscall(SYS_kill, getpid(), SIGUSR2);
    int after = caught - at_first;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &usr2, &mask, 8);
    syscall(SYS_kill, getpid(), SIGUSR2);
    syscall(SYS_rt_sigpending, &pending, 8);
    syscall(SYS_rt_sigsuspend, &mask, 8);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, 8);
    (void)client;
    return sprintf(out, "signals %d %d %d %d %d\n", r, before.handler == on_signal, after == SIGUSR2,
                   pending == usr2, caught - at_first == 2 * SIGUSR2);
}

int main(int count, char **arguments) {
    int listener = listen_at(arguments[count - 1]);
    int (*const groups[])(char *, int) = {refused, descriptors, machine, signals};
    for (;;) {
        char line[256];
        int fd = accept(listener, NULL, NULL);
        while (read(fd, line, 1) == 1) write(fd, line, groups[*line - '0'](line, fd));
        close(fd);
    }
}
