// What the test servers have in common: a listener on the loopback address.
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

static int listen_at(const char *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 16)) exit(1);
    return listener;
}
