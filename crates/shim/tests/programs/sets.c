// A line server whose listener is in as many epoll sets as the kernel and the shim allow, as one
// of many threads has it: each client is accepted through the next set, and told what that said.
#include "listen.h"
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { TRIED = 140, FIRST = 1000 };

int main(int argc, char **arguments) {
    int listener = listen_at(arguments[argc - 1]), sets[TRIED], in = 0, error = 0;
    for (int i = 0; i < TRIED; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = FIRST + i};
        sets[i] = epoll_create1(0);
        if (epoll_ctl(sets[i], EPOLL_CTL_ADD, listener, &event) == 0) in++;
        else error = errno;
    }
    for (unsigned client = 0;; client++) {
        char line[64];
        struct epoll_event event = {0};
        int n = epoll_wait(sets[client % in], &event, 1, -1), fd = accept(listener, NULL, NULL);
        int is_own = n == 1 && event.data.u64 == FIRST + client % in;
        while (read(fd, line, 1) == 1)
            write(fd, line, sprintf(line, "%d sets, errno %d, %d\n", in, error, is_own));
        close(fd);
    }
}
