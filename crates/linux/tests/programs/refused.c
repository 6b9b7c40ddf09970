// A process with one thing that no image can have, named by the first argument. It says
// that it has it by a line, or that this kernel does not have such a thing.
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static char *pages(int prot, int flags) {
    return mmap(0, PAGE, prot, flags | MAP_ANONYMOUS, -1, 0);
}

static int file(void) {
    char name[] = "/tmp/hfrefusedXXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    return ftruncate(fd, PAGE) ? -1 : fd;
}

static int filtered(void) {
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &all};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int traced(void) {
    int ready[2];
    char byte;
    if (pipe(ready)) return 0;
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ptrace(PTRACE_SEIZE, getppid(), 0, 0);
        if (write(ready[1], "r", 1) == 1) pause();
        _exit(1);
    }
    return read(ready[0], &byte, 1) == 1;
}

static int has_child(void) {
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pause();
    }
    return 1;
}

static int uses_ring(void) {
    struct io_uring_params p = {0};
    int fd = syscall(SYS_io_uring_setup, 4, &p);
    return fd >= 0 && mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, IORING_OFF_SQ_RING) != MAP_FAILED;
}

static int packets(void) {
    int ends[2];
    return pipe2(ends, O_DIRECT) == 0 && write(ends[1], "x", 1) == 1;
}

static int half(void) {
    int ends[2];
    return pipe(ends) == 0 && close(ends[0]) == 0;
}

static int unread(void) {
    int fd = inotify_init();
    inotify_add_watch(fd, "/proc/self/exe", IN_OPEN);
    return close(open("/proc/self/exe", O_RDONLY)) == 0;
}

static int closed(void) {
    int ends[2], set = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN};
    if (pipe(ends)) return 0;
    epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &e);
    return dup(ends[0]) >= 0 && close(ends[0]) == 0;
}

// Its other end is on its way to nobody.
static int pair(void) {
    int ends[2], by[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, by)) return 0;
    char room[CMSG_SPACE(sizeof(int))] = {0}, byte = 1;
    struct iovec part = {&byte, 1};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &ends[1], sizeof(int));
    return sendmsg(by[0], &m, 0) == 1 && close(ends[1]) == 0;
}

static int messages(void) {
    int ends[2];
    return socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0 && send(ends[0], "x", 1, 0) == 1;
}

static int alarmed(void) {
    alarm(1000);
    return 1;
}

static int itimer(void) {
    struct itimerval far = {.it_value = {1000, 0}};
    return setitimer(ITIMER_VIRTUAL, &far, 0) == 0;
}

static int asynchronous(void) {
    int ends[2];
    // Of its own, or the end of the pipe would end who runs the tests.
    return setpgid(0, 0) == 0 && pipe(ends) == 0 &&
           fcntl(ends[0], F_SETOWN, -getpid()) == 0 && fcntl(ends[0], F_SETFL, O_ASYNC) == 0;
}

static void *leader_ends(void *arg) {
    pthread_join((pthread_t)arg, 0);
    usleep(20000);
    puts("ready"), fflush(stdout);
    pause();
    return 0;
}

static int alone(void) {
    pthread_t t;
    pthread_create(&t, 0, leader_ends, (void *)pthread_self());
    pthread_exit(0);
}

static int grouped(void) {
    gid_t groups[2000];
    for (int i = 0; i < 2000; i++) groups[i] = 5000 + i;
    return setgroups(2000, groups) == 0;
}

// What a thread other than the first has of its own: the first letter tells.
static void *own(void *what) {
    int ok = 0;
    switch (*(char *)what) {
    case 'i': ok = syscall(SYS_setresuid, -1, 7, -1) == 0; break;
    case 'f': ok = unshare(CLONE_FS) == 0 && chdir("/tmp") == 0; break;
    case 'u': ok = unshare(CLONE_FS) == 0 && umask(0123) >= 0; break;
    case 's': ok = filtered(); break;
    case 'b': ok = prctl(PR_SET_SECUREBITS, 2) == 0; break;
    }
    puts(ok ? "ready" : "not here"), fflush(stdout);
    for (;;) pause();
}

static void differs(const char *how) {
    pthread_t t;
    pthread_create(&t, 0, own, (void *)how);
    for (;;) pause();
}

// Nothing is wrong with it at any moment, only between two looks.
static int churns(void) {
    int ends[2], set = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN};
    puts("ready"), fflush(stdout);
    for (;;) {
        if (pipe(ends)) return 0;
        epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &e);
        close(ends[0]), close(ends[1]);
    }
}

static void look(int signal) {
    static int fd = -1;
    if (fd < 0) fd = open("/proc/self/stat", O_RDONLY);
    else close(fd), fd = -1;
}

static int has(const char *what) {
#define IS(name) (strcmp(what, name) == 0)
    if (IS("seccomp")) return filtered();
    if (IS("mlock")) return mlock(pages(PROT_READ | PROT_WRITE, MAP_PRIVATE), PAGE) == 0;
    if (IS("sigtrap")) return signal(SIGTRAP, SIG_IGN) != SIG_ERR;
    if (IS("traced")) return traced();
    if (IS("child")) return has_child();
    if (IS("chroot")) return chroot("/tmp") == 0;
    if (IS("mount")) return unshare(CLONE_NEWNS) == 0;
    if (IS("user")) return unshare(CLONE_NEWUSER) == 0;
    if (IS("mseal")) return syscall(462, pages(PROT_READ, MAP_PRIVATE), PAGE, 0) == 0;
    if (IS("droppable")) return pages(PROT_READ | PROT_WRITE, 8) != MAP_FAILED;
    if (IS("sysv")) return munmap(shmat(shmget(IPC_PRIVATE, 2 * PAGE, 0600), 0, 0), PAGE) == 0;
    if (IS("ring")) return uses_ring();
    if (IS("deleted")) return mmap(0, PAGE, PROT_READ, MAP_SHARED, file(), 0) != MAP_FAILED;
    if (IS("async")) return asynchronous();
    if (IS("pidfd")) return syscall(SYS_pidfd_open, getpid(), 0) >= 0;
    if (IS("half")) return half();
    if (IS("packets")) return packets();
    if (IS("unread")) return unread();
    if (IS("closed")) return closed();
    if (IS("pair")) return pair();
    if (IS("messages")) return messages();
    if (IS("lease")) return fcntl(file(), F_SETLEASE, F_WRLCK) == 0;
    if (IS("raw")) return socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0;
    if (IS("packet")) return socket(AF_PACKET, SOCK_RAW, 0) >= 0;
    if (IS("vsock")) return socket(AF_VSOCK, SOCK_STREAM, 0) >= 0;
    if (IS("alarm")) return alarmed();
    if (IS("itimer")) return itimer();
    if (IS("groups")) return grouped();
    if (IS("alone")) return alone();
    if (IS("churn")) return churns();
    if (IS("looks")) return signal(SIGUSR1, look) != SIG_ERR;
    if (IS("maps")) {
        int fd = open("/tmp/hfwrites", O_RDWR | O_CREAT, 0600);
        if (ftruncate(fd, 4096)) return 0;
        void *mapped = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        return mapped != MAP_FAILED && !close(fd);
    }
    if (IS("writes")) return open("/tmp/hfwrites", O_WRONLY | O_CREAT, 0600) >= 0;
    return IS("nothing") || IS("stopped");
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    if (strncmp(argv[1], "own-", 4) == 0) differs(argv[1] + 4);
    puts(has(argv[1]) ? "ready" : "not here");
    fflush(stdout);
    for (;;) pause();
}
