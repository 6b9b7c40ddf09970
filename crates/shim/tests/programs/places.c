// A line server that has many sockets of other kinds, and listens at more addresses than the shim
// tells the daemon of, before it listens at its service. With one more argument the others are
// addresses of the service.
#include "listen.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <unistd.h>

enum { DATAGRAMS = 70, OTHERS = 17 };

int main(int argc, char **arguments) {
    int port = atoi(arguments[argc - 1]), listeners = 0;
    for (int i = 0; i < DATAGRAMS; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
        bind(socket(AF_INET, SOCK_DGRAM, 0), (void *)&at, sizeof at);
    }
    for (int i = 1; i <= OTHERS; i++, listeners++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + i);
        if (argc == 2) at.sin_port = htons(port + i);
        int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (void *)&at, sizeof at) || listen(fd, 16)) return 1;
    }
    for (int listener = listen_at(arguments[argc - 1]);;) {
        char line[64];
        int fd = accept(listener, NULL, NULL);
        while (read(fd, line, 1) == 1) write(fd, line, sprintf(line, "%d others\n", listeners));
        close(fd);
    }
}
