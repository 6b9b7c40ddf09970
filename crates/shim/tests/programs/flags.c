// Every call that reads or sends on a socket, with every flag: a client sends the
// number of a case and BYTES bytes, and ends its stream; it is told what the call
// answered, what it left in the buffers, and what is still there to read.
#define _GNU_SOURCE
#include "listen.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { BYTES = 64, HALF = 40, ROOM = 100 };

static const struct {
    const char *name;
    int flags;
} flags[] = {
    {"0", 0},
    {"PEEK", MSG_PEEK},
    {"DONTWAIT", MSG_DONTWAIT},
    {"WAITALL", MSG_WAITALL},
    {"TRUNC", MSG_TRUNC},
    {"PEEK|TRUNC", MSG_PEEK | MSG_TRUNC},
    {"TRUNC|DONTWAIT", MSG_TRUNC | MSG_DONTWAIT},
    {"TRUNC|WAITALL", MSG_TRUNC | MSG_WAITALL},
    {"PEEK|WAITALL", MSG_PEEK | MSG_WAITALL},
    {"CMSG_CLOEXEC", MSG_CMSG_CLOEXEC},
    {"OOB", MSG_OOB},
    {"ERRQUEUE", MSG_ERRQUEUE},
};
static const struct {
    const char *name;
    int flags;
} send_flags[] = {
    {"0", 0},
    {"MORE", MSG_MORE},
    {"DONTWAIT", MSG_DONTWAIT},
    {"NOSIGNAL", MSG_NOSIGNAL},
    {"MORE|DONTWAIT", MSG_MORE | MSG_DONTWAIT},
    {"EOR", MSG_EOR},
    {"DONTROUTE", MSG_DONTROUTE},
    {"ZEROCOPY", MSG_ZEROCOPY},
    {"OOB", MSG_OOB},
};

enum call { RECV, RECVFROM, RECVMSG, RECVMMSG, READ, READV, CALLS };
static const char *const calls[] = {"recv", "recvfrom", "recvmsg", "recvmmsg", "read", "readv"};
// The buffer: null, too short for all, none, or with room to spare.
static const struct {
    const char *name;
    int null, len;
} buffers[] = {{"null", 1, HALF}, {"half", 0, HALF}, {"none", 0, 0}, {"room", 0, ROOM}};

enum socket_kind { TCP, UDP, STREAM_PAIR, DATAGRAM_PAIR, KINDS };
static const char *const kinds[] = {"tcp", "udp", "stream pair", "datagram pair"};

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

static char bytes[BYTES];

static char *reading(char *out, int fd, enum call call, int flag, int buffer) {
    char into[ROOM];
    struct sockaddr_storage from;
    socklen_t from_len = 4; // too short for any
    void *at = buffers[buffer].null ? NULL : into;
    struct iovec parts[] = {{at, buffers[buffer].len / 2},
                            {at ? into + buffers[buffer].len / 2 : NULL,
                             buffers[buffer].len - buffers[buffer].len / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2, .msg_name = &from, .msg_namelen = 4};
    struct mmsghdr several = {.msg_hdr = message};
    ssize_t r = 0;
    memset(into, '.', sizeof into);
    memset(&from, 0, sizeof from);
    errno = 0;
    switch (call) {
    case RECV: r = recv(fd, at, buffers[buffer].len, flags[flag].flags); break;
    case RECVFROM:
        r = recvfrom(fd, at, buffers[buffer].len, flags[flag].flags, (void *)&from, &from_len);
        break;
    case RECVMSG: r = recvmsg(fd, &message, flags[flag].flags); break;
    case RECVMMSG: r = recvmmsg(fd, &several, 1, flags[flag].flags, NULL); break;
    case READ: r = read(fd, at, buffers[buffer].len); break;
    default: r = readv(fd, parts, 2); break;
    }
    return out + sprintf(out, "%zd errno %d from %d %d flags %x [%.*s]", r, r < 0 ? errno : 0,
                         (int)from_len, (int)message.msg_namelen, message.msg_flags, ROOM, into);
}

static char *rest(char *out, int fd, int flags) {
    char left[2 * BYTES];
    ssize_t r = recv(fd, left, sizeof left, flags);
    return out + sprintf(out, " left %zd [%.*s]", r, r > 0 ? (int)r : 0, left);
}

// Two ends that are connected, or the same end twice; the bytes wait in the first.
static void socket_of(enum socket_kind kind, int fds[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    if (kind == UDP) {
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fds[0] = socket(AF_INET, SOCK_DGRAM, 0), fds[1] = dup(fds[0]);
        bind(fds[0], (void *)&at, sizeof at);
        getsockname(fds[0], (void *)&at, &len);
        sendto(fds[0], bytes, BYTES, 0, (void *)&at, sizeof at);
    } else {
        socketpair(AF_UNIX, kind == STREAM_PAIR ? SOCK_STREAM : SOCK_DGRAM, 0, fds);
        send(fds[1], bytes, BYTES, 0);
        if (kind == STREAM_PAIR) shutdown(fds[1], SHUT_WR);
    }
}

static char *receive(char *out, int conn, int n) {
    int buffer = n % COUNT(buffers), flag = n / COUNT(buffers) % COUNT(flags);
    int call = n / COUNT(buffers) / COUNT(flags) % CALLS;
    enum socket_kind kind = n / COUNT(buffers) / COUNT(flags) / CALLS;
    int fds[2] = {conn, -1};
    // Where it would wait for ever.
    if (kind != TCP && (flags[flag].flags == MSG_OOB || flags[flag].flags == MSG_ERRQUEUE))
        return out;
    if (call >= READ && flag) return out;
    out += sprintf(out, "%s %s %s %s: ", kinds[kind], calls[call], flags[flag].name,
                   buffers[buffer].name);
    if (kind != TCP) socket_of(kind, fds);
    out = reading(out, fds[0], call, flag, buffer);
    // The end of a client may still be on its way.
    out = rest(out, fds[0], kind == TCP ? 0 : MSG_DONTWAIT);
    if (kind != TCP) close(fds[0]), close(fds[1]);
    return out + sprintf(out, "\n");
}

static char *sending(char *out, int conn, int n) {
    struct iovec part = {bytes, BYTES};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int flag = n / 2;
    errno = 0;
    ssize_t r = n % 2 ? sendmsg(conn, &message, send_flags[flag].flags)
                      : send(conn, bytes, BYTES, send_flags[flag].flags);
    return out + sprintf(out, " %s %s: %zd errno %d\n", n % 2 ? "sendmsg" : "send",
                         send_flags[flag].name, r, r < 0 ? errno : 0);
}

int main(int count, char **arguments) {
    int listener = listen_at(arguments[count - 1]);
    int receiving = KINDS * CALLS * COUNT(flags) * COUNT(buffers);
    for (int i = 0; i < BYTES; i++) bytes[i] = 'a' + i % 26;
    for (;;) {
        char line[1024], *end = line;
        int conn = accept(listener, NULL, NULL), n = -1;
        if (read(conn, &n, sizeof n) == sizeof n && n >= 0) {
            if (n < receiving)
                end = receive(line, conn, n);
            else if (n < receiving + 2 * COUNT(send_flags))
                end = sending(line, conn, n - receiving);
            else
                end += sprintf(end, "end\n");
        }
        // Otherwise the client would be reset.
        for (char sink[BYTES]; read(conn, sink, sizeof sink) > 0;) {}
        write(conn, line, end - line);
        close(conn);
    }
}
