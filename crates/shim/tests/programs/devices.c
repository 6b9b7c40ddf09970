// A line server that keeps descriptors of the machine open: random bytes, files of /proc and /sys,
// and an inotify queue.
#include "listen.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

static int random_bytes(char *out, int fd) {
    unsigned char bytes[16] = {0};
    int n = read(fd, bytes, sizeof bytes), sum = 0;
    for (int i = 0; i < n; i++) sum = sum * 31 + bytes[i];
    return sprintf(out, "%d of 16, %d\n", n, sum);
}

static int file(char *out, int fd) {
    char text[4096];
    lseek(fd, 0, SEEK_SET);
    return sprintf(out, "%s\n", read(fd, text, sizeof text) > 0 ? "full" : "empty");
}

static int events(char *out, int queue) {
    char all[4096];
    int n = read(queue, all, sizeof all), count = 0;
    for (int at = 0; at < n; count++)
        at += sizeof(struct inotify_event) + ((struct inotify_event *)(all + at))->len;
    return sprintf(out, "%d events\n", count);
}

int main(int argc, char **arguments) {
    int listener = listen_at(arguments[argc - 1]);
    int urandom = open("/dev/urandom", O_RDONLY), random = open("/dev/random", O_RDONLY);
    int stat = open("/proc/stat", O_RDONLY), system = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY);
    int queue = inotify_init1(IN_NONBLOCK);
    if (system < 0) system = open("/sys/devices/system/cpu/online", O_RDONLY);
    inotify_add_watch(queue, ".", IN_CREATE);
    for (;;) {
        char line[256];
        int fd = accept(listener, NULL, NULL), n = 0;
        while (read(fd, line, 1) == 1) {
            switch (*line) {
            case 'u': n = random_bytes(line, urandom); break;
            case 'r': n = random_bytes(line, random); break;
            case 'p': n = file(line, stat); break;
            case 's': n = file(line, system); break;
            case 'e': n = events(line, queue); break;
            default:
                close(open("created", O_RDWR | O_CREAT, 0600));
                unlink("created");
                n = sprintf(line, "created\n");
            }
            write(fd, line, n);
        }
        close(fd);
    }
}
