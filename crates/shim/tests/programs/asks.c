// Asks for what no two machines have alike: interfaces and addresses in every way,
// unsent bytes, the clocks of threads; and opens descriptors by their path.
#define _GNU_SOURCE
#include "listen.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netdb.h>
#include <netpacket/packet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static unsigned sum(const void *at, size_t n) {
    unsigned all = 0;
    for (size_t i = 0; i < n; i++) all = all * 31 + ((const unsigned char *)at)[i];
    return all;
}

static int interfaces(char *out, int fd) {
    struct ifreq all[16], one = {.ifr_name = "lo"};
    struct ifconf list = {.ifc_len = sizeof all, .ifc_req = all};
    struct ethtool_value value = {.cmd = ETHTOOL_GLINK};
    struct arpreq arp = {.arp_dev = "lo"};
    memset(all, 0, sizeof all);
    ioctl(fd, SIOCGIFCONF, &list);
    struct ifconf room = {0};
    int needed = ioctl(fd, SIOCGIFCONF, &room), index = ioctl(fd, SIOCGIFINDEX, &one);
    struct ifreq tool = {.ifr_name = "lo"};
    tool.ifr_data = (void *)&value;
    int told = ioctl(fd, SIOCETHTOOL, &tool), told_errno = errno;
    ((struct sockaddr_in *)&arp.arp_pa)->sin_family = AF_INET;
    int known = ioctl(fd, SIOCGARP, &arp);
    return sprintf(out, "interfaces %d %u %d %d %d %d %d %d %d\n", list.ifc_len,
                   sum(all, list.ifc_len), list.ifc_req == all, needed, room.ifc_len, index,
                   told, told_errno, known);
}

// The counters of the loopback interface grow with every client.
static int addresses(char *out, int fd) {
    struct ifaddrs *list = NULL;
    unsigned n = 0, all = 0;
    int r = getifaddrs(&list);
    for (struct ifaddrs *i = list; i; i = i->ifa_next, n++) {
        all = all * 31 + sum(i->ifa_name, strlen(i->ifa_name)) + i->ifa_flags;
        struct sockaddr *of[] = {i->ifa_addr, i->ifa_netmask, i->ifa_broadaddr};
        for (int k = 0; k < 3; k++)
            if (of[k]) all = all * 31 + sum(of[k], of[k]->sa_family == AF_INET6 ? 28 : 16);
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_PACKET && i->ifa_data)
            all = all * 31 + sum(i->ifa_data, 92);
    }
    if (list) freeifaddrs(list);
    (void)fd;
    return sprintf(out, "addresses %d %u %u\n", r, n, all);
}

static int unsent(char *out, int fd) {
    static char many[1 << 20];
    int queued, unsent, sent = send(fd, many, sizeof many, MSG_DONTWAIT);
    memset(&queued, (int)(long)&queued >> 4, sizeof queued), unsent = queued;
    ioctl(fd, SIOCOUTQ, &queued);
    ioctl(fd, SIOCOUTQNSD, &unsent);
    return sprintf(out, "unsent %d %d %d\n", sent, queued, unsent);
}

static void *beside(void *unused) {
    for (;;) pause();
    return unused;
}

static int clocks(char *out, int fd) {
    static pthread_t thread;
    struct timespec t = {0}, u = {0}, resolution = {0};
    clockid_t of_thread, of_child;
    // A number is taken that the other member does not take.
    if (fork() == 0) _exit(0);
    wait(NULL);
    if (!thread) pthread_create(&thread, NULL, beside, NULL);
    pthread_getcpuclockid(thread, &of_thread);
    int r = clock_gettime(of_thread, &t);
    int s = clock_getcpuclockid(getpid(), &of_child);
    clock_gettime(of_child, &u);
    clock_getres(of_thread, &resolution);
    (void)fd;
    return sprintf(out, "clocks %d %ld.%09ld %d %ld.%09ld %ld\n", r, t.tv_sec, t.tv_nsec, s,
                   u.tv_sec, u.tv_nsec, resolution.tv_nsec);
}

// What is behind a path that names a descriptor is that descriptor's file or pipe.
static int paths(char *out, int fd) {
    char name[64], text[16] = "", piped[16] = "", nothing[16] = "";
    int file = open("asks.txt", O_RDWR | O_CREAT | O_TRUNC, 0600), ends[2], zero, n = 0;
    write(file, "written", 7);
    sprintf(name, "/proc/self/fd/%d", file);
    int again = open(name, O_RDWR);
    n += pread(again, text, sizeof text - 1, 0);
    pwrite(again, "W", 1, 0);
    pread(file, text, 1, 0);
    pipe(ends);
    sprintf(name, "/dev/fd/%d", ends[1]);
    int end = open(name, O_WRONLY);
    write(end, "piped", 5);
    n += read(ends[0], piped, sizeof piped - 1);
    sprintf(name, "/proc/self/fd/%d", fd);
    zero = open(name, O_RDONLY);
    FILE *stream = fopen("/dev/stdin", "r");
    n += stream && fgets(nothing, sizeof nothing, stream);
    if (stream) fclose(stream);
    close(file), close(again), close(ends[0]), close(ends[1]), close(end);
    return sprintf(out, "paths %d %s %s %d %d\n", n, text, piped, zero, stream != NULL);
}

// Bytes wait in socketpairs, of which one has been read: the survivor has the rest.
static int pairs[2][2];

static int put(char *out, int fd) {
    char one[2] = "", message[4] = "";
    if (!pairs[0][0]) {
        socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[0]);
        socketpair(AF_UNIX, SOCK_DGRAM, 0, pairs[1]);
    }
    write(pairs[0][1], "stream", 6);
    recv(pairs[0][0], one, 1, MSG_PEEK);
    read(pairs[0][0], one, 1);
    write(pairs[1][1], "a long message", 14);
    write(pairs[1][1], "another", 7);
    recvfrom(pairs[1][0], message, 3, 0, NULL, NULL);
    (void)fd;
    return sprintf(out, "put %s %s\n", one, message);
}

static int get(char *out, int fd) {
    char bytes[64] = "", message[64] = "";
    recv(pairs[0][0], bytes, sizeof bytes - 1, MSG_DONTWAIT);
    recv(pairs[1][0], message, sizeof message - 1, MSG_DONTWAIT);
    (void)fd;
    return sprintf(out, "get %s %s\n", bytes, message);
}

static int names(char *out, int fd) {
    struct addrinfo hints = {.ai_flags = AI_CANONNAME, .ai_socktype = SOCK_STREAM}, *list = NULL;
    char name[64] = "", address[64] = "";
    int r = getaddrinfo("asked.test", "80", &hints, &list);
    struct sockaddr_in *first = r ? NULL : (void *)list->ai_addr;
    if (first) inet_ntop(AF_INET, &first->sin_addr, address, sizeof address);
    int n = sprintf(out, "names %d %s %s", r, address, r ? "" : list->ai_canonname);
    struct sockaddr_in other = {.sin_family = AF_INET, .sin_addr = {htonl(0xc0000207)}};
    int s = getnameinfo((void *)&other, sizeof other, name, sizeof name, NULL, 0, NI_NAMEREQD);
    if (list) freeaddrinfo(list);
    (void)fd;
    return n + sprintf(out + n, " %d %s\n", s, name);
}

int main(int count, char **arguments) {
    int (*const groups[])(char *, int) = {interfaces, addresses, clocks, paths, put, get, names};
    int listener = listen_at(arguments[count - 1]);
    for (;;) {
        char line[4096];
        int fd = accept(listener, NULL, NULL);
        while (read(fd, line, 1) == 1) {
            int which = *line - '0';
            // The unsent bytes are no answer: this client does not read them.
            if (which == 9) write(fd, line, unsent(line, fd));
            else write(fd, line, groups[which](line, fd));
        }
        close(fd);
    }
}
