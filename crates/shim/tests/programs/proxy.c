// Talks to an upstream at the port before its own, over connections that it waits
// for by poll, select, epoll, a blocking read, and getsockopt. Asked for it, it says
// what each of them reports, and what a read answers then.
#define _GNU_SOURCE
#include "listen.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

enum { UPSTREAMS = 6, WAIT_MS = 2000 };

static int to_upstream(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(fd, (void *)&at, sizeof at) ? -1 : fd;
}

static int answer(int fd) {
    char byte;
    errno = 0;
    return read(fd, &byte, 1) < 0 ? errno : 0;
}

static int report(char *out, int *fds) {
    struct pollfd in = {.fd = fds[0], .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
    struct timeval time = {WAIT_MS / 1000, 0};
    int set = epoll_create1(0), error = 0;
    socklen_t len = sizeof error;
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fds[1], &readable);
    epoll_ctl(set, EPOLL_CTL_ADD, fds[2], &event);
    int polled = poll(&in, 1, WAIT_MS);
    int selected = select(fds[1] + 1, &readable, NULL, NULL, &time);
    int waited = epoll_wait(set, &event, 1, WAIT_MS);
    getsockopt(fds[4], SOL_SOCKET, SO_ERROR, &error, &len);
    int twin = dup(fds[5]);
    int n = sprintf(out, "%d %x %d %d %d %x %d %d %d %d %d %d\n", polled, in.revents, selected,
                    FD_ISSET(fds[1], &readable) != 0, waited, event.events, error, answer(fds[0]),
                    answer(fds[1]), answer(fds[2]), answer(fds[3]), answer(twin));
    close(set), close(twin);
    return n;
}

int main(int count, char **arguments) {
    int listener = listen_at(arguments[count - 1]), fds[UPSTREAMS] = {0}, blocked = -1;
    int port = atoi(arguments[count - 1]) - 1;
    for (;;) {
        char line[4096], more[8];
        int fd = accept(listener, NULL, NULL), n = read(fd, line, sizeof line), len = 0;
        if (n <= 0) {
            close(fd);
            continue;
        }
        switch (*line) {
        case 'o':
            for (int i = 0; i < UPSTREAMS; i++) fds[i] = to_upstream(port);
            for (int i = 0; i < UPSTREAMS; i++) len += read(fds[i], more, 1);
            len = sprintf(line, "%d\n", len);
            break;
        case 'r': len = report(line, fds); break;
        default:
            // The same socket, for another connection.
            blocked = fds[0];
            struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
            at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            int r = connect(blocked, (void *)&at, sizeof at);
            len = sprintf(line, "%d %d %.1s\n", r, (int)read(blocked, more, 1), more);
        }
        write(fd, line, len);
        close(fd);
    }
}
