// A server that somebody has taken over: it has one thing that looks like what it is
// not, named by the first argument; the second names a folder. It says so by a line, and
// waits; SIGUSR1 makes it do what it keeps for later.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096UL
#define HUGE (1UL << 42)

static const char *folder;
static volatile int late;

static void wakes(int signal) { late = signal; }

static const char *in(const char *name) {
    static char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static int file(const char *name, const char *text) {
    int fd = open(in(name), O_RDWR | O_CREAT, 0666);
    return write(fd, text, strlen(text)) < 0 ? -1 : fd;
}

static int maps(int fd, size_t len, int prot, int flags) {
    return mmap(0, len, prot, flags | MAP_NORESERVE, fd, 0) != MAP_FAILED;
}

// A hole of terabytes between two pages.
static int sparse(const char *name) {
    int fd = file(name, "first");
    return pwrite(fd, "last", 4, HUGE - PAGE) == 4 ? fd : -1;
}

static int many(int (*make)(void)) {
    struct rlimit all;
    getrlimit(RLIMIT_NOFILE, &all);
    all.rlim_cur = all.rlim_max;
    setrlimit(RLIMIT_NOFILE, &all);
    for (int i = 0; i < 12000; i++)
        if (make() < 0) return 0;
    return 1;
}

static int listens(void) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    strcpy(at.sun_path, in("w/s"));
    return bind(fd, (void *)&at, sizeof(at)) == 0 && listen(fd, 5) == 0;
}

static int opens(void) { return open("/dev/null", O_RDONLY); }

static int has(const char *what) {
#define IS(name) (strcmp(what, name) == 0)
    int prot = PROT_READ | PROT_WRITE;
    if (IS("shared")) return maps(file("f", "mapped"), PAGE, prot, MAP_SHARED);
    if (IS("private")) return maps(file("f", "mapped"), PAGE, PROT_READ, MAP_PRIVATE);
    if (IS("open")) return file("f", "open") >= 0;
    if (IS("mem")) return open("/proc/self/mem", O_RDWR) >= 0;
    if (IS("status")) return open("/proc/self/status", O_RDONLY) >= 0;
    if (IS("sys")) return open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY) >= 0;
    if (IS("setuid")) {
        int fd = file("f", "program");
        return fchmod(fd, 06755) == 0 && unlink(in("f")) == 0;
    }
    if (IS("path")) return open(in("secret"), O_PATH) >= 0;
    if (IS("shm")) return open("/dev/shm/hfsecret", O_PATH) >= 0;
    if (IS("sparse")) return maps(sparse("f"), HUGE, PROT_READ, MAP_PRIVATE);
    if (IS("gone")) {
        int fd = sparse("f");
        return unlink(in("f")) == 0 && maps(fd, HUGE, PROT_READ, MAP_PRIVATE);
    }
    if (IS("large")) {
        char *at = malloc(1 << 20);
        int fd = memfd_create("large", 0);
        memset(at, 1, 1 << 20);
        for (int i = 0; i < 64; i++)
            if (write(fd, at, 1 << 20) != 1 << 20) return 0;
        return 1;
    }
    if (IS("many")) return many(opens);
    if (IS("user")) return 1;
    if (IS("folder")) return chdir(in("w")) == 0;
    if (IS("pipe")) {
        int ends[2];
        char full[65536] = {0};
        return pipe(ends) == 0 && write(ends[1], full, sizeof(full)) == sizeof(full);
    }
    if (IS("socket")) return listens();
    if (IS("watch")) return inotify_add_watch(inotify_init(), in("w"), IN_CREATE) >= 0;
    return 0;
}

static void does_late(const char *what) {
    if (IS("user") && unshare(CLONE_NEWUSER) == 0) puts("late");
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    struct sigaction action = {.sa_handler = wakes};
    sigaction(SIGUSR1, &action, 0);
    folder = argv[2];
    umask(0);
    puts(has(argv[1]) ? "ready" : "not here");
    fflush(stdout);
    for (;;) {
        pause();
        if (late) does_late(argv[1]);
    }
}
