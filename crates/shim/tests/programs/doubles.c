// A line server that writes to each client by several descriptors of the connection: what it has
// written by one arrives before what it writes later by another.
#define _GNU_SOURCE
#include "listen.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { MANY = 9000 };

static char many[MANY];

static void in_turn(int by, int also) {
    write(by, "HEAD ", 5);
    write(also, many, sizeof many);
    write(by, "\n", 1);
}

int main(int argc, char **arguments) {
    int listener = listen_at(arguments[argc - 1]);
    memset(many, 'x', sizeof many);
    for (;;) {
        char question;
        int fd = accept(listener, NULL, NULL), other = -1;
        while (read(fd, &question, 1) == 1) {
            if (question == 'a') other = dup(fd), in_turn(fd, other), in_turn(other, fd);
            if (question == 'b') {
                write(fd, "early ", 6);
                other = fcntl(fd, F_DUPFD_CLOEXEC, 0);
                in_turn(other, fd);
            }
            if (question == 'c') {
                write(fd, "early ", 6);
                other = dup3(fd, 50, 0);
                in_turn(other, fd);
            }
            if (question == 'd') {
                other = dup(fd);
                write(fd, "bye\n", 4);
                shutdown(other, SHUT_WR);
            }
            if (question == 'e') {
                other = dup(fd);
                close(fd), fd = other, other = -1;
                in_turn(fd, fd);
            }
            close(other);
        }
        close(fd);
    }
}
