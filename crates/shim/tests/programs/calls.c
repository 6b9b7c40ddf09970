// A line server that makes calls whose results differ from machine to machine
// and from run to run, and tells its client what came of them.
#define _GNU_SOURCE
#include "listen.h"
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static volatile int caught;

static void on_signal(int signal) { caught += signal; }

static int signals(char *out) {
    sigset_t usr1, before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    int at_first = caught, after_raise, after_suspend, waited = 0;
    raise(SIGUSR1);
    after_raise = caught - at_first;
    sigprocmask(SIG_BLOCK, &usr1, &before);
    kill(getpid(), SIGUSR1);
    sigsuspend(&before);
    after_suspend = caught - at_first;
    kill(getpid(), SIGUSR1);
    sigwait(&usr1, &waited);
    struct timespec soon = {0, 1000000};
    int none = sigtimedwait(&usr1, NULL, &soon);
    sigprocmask(SIG_SETMASK, &before, NULL);
    ualarm(2000, 0);
    pause();
    return sprintf(out, "signals %d %d %d %d %d\n", after_raise, after_suspend, waited, none,
                   caught - at_first);
}

static int files(char *out) {
    char name[] = "calls-XXXXXX", other[] = "calls-XXXXXX.txt", dir[] = "calls-XXXXXX";
    char self[64], link[300];
    int a = mkstemp(name), b = mkostemps(other, 4, O_CLOEXEC);
    mkdtemp(dir);
    sprintf(self, "/proc/self/fd/%d", a);
    ssize_t n = readlink(self, link, sizeof link);
    struct statvfs vfs;
    struct statfs fs;
    statvfs(".", &vfs);
    statfs(".", &fs);
    int done = sprintf(out, "files %d %s %d %s %s %.*s %lu %lu\n", a, name, b, other, dir, (int)n,
                       link, (unsigned long)vfs.f_bavail, (unsigned long)fs.f_files);
    close(a), close(b), unlink(name), unlink(other), rmdir(dir);
    return done;
}

static int machine(char *out) {
    double load[3] = {0};
    char name[IF_NAMESIZE] = "";
    struct rlimit limit;
    struct timespec t, resolution;
    getloadavg(load, 3);
    if_indextoname(if_nametoindex("lo"), name);
    prlimit(0, RLIMIT_NOFILE, NULL, &limit);
    timespec_get(&t, TIME_UTC);
    clock_getres(CLOCK_MONOTONIC_COARSE, &resolution);
    return sprintf(out, "machine %f %s %u %d %lu %ld.%09ld %ld %ld %ld\n", load[0], name,
                   if_nametoindex("none"), sched_getcpu(), (unsigned long)limit.rlim_cur, t.tv_sec,
                   t.tv_nsec, resolution.tv_nsec, syscall(SYS_gettid), syscall(SYS_getppid));
}

static int descriptors(char *out) {
    struct epoll_event event = {.events = EPOLLIN};
    struct timespec soon = {0, 3000000};
    struct itimerspec every = {{0, 0}, {50, 0}}, left;
    eventfd_t value = 0;
    int e = eventfd(3, EFD_NONBLOCK), set = epoll_create1(0), t = timerfd_create(CLOCK_MONOTONIC, 0);
    int watch = inotify_init1(IN_NONBLOCK), wd = inotify_add_watch(watch, ".", IN_CREATE);
    event.data.ptr = &event;
    epoll_ctl(set, EPOLL_CTL_ADD, e, &event);
    int ready = epoll_pwait2(set, &event, 1, &soon, NULL);
    int same = event.data.ptr == &event;
    eventfd_read(e, &value);
    int idle = epoll_pwait2(set, &event, 1, &soon, NULL);
    eventfd_write(e, 5);
    timerfd_settime(t, 0, &every, NULL);
    timerfd_gettime(t, &left);
    int made = sprintf(out, "descriptors %d %d %d %ld %d %ld\n", ready, same, idle, (long)value, wd,
                       left.it_value.tv_nsec);
    inotify_rm_watch(watch, wd);
    close(e), close(set), close(t), close(watch);
    return made;
}

static int children(char *out) {
    char *arguments[] = {"sh", "-c", "exit 3", NULL};
    siginfo_t info = {0};
    pid_t pid = 0;
    int status, spawned = posix_spawn(&pid, "/bin/sh", NULL, NULL, arguments, environ);
    waitpid(pid, &status, 0);
    pid_t child = fork();
    if (child == 0) {
        int before = caught;
        raise(SIGUSR1);
        _exit(caught - before == SIGUSR1 ? 7 : 8);
    }
    waitid(P_PID, child, &info, WEXITED);
    return sprintf(out, "children %d %d %d %d %d %d %d\n", spawned, pid, status, child, info.si_pid,
                   info.si_status, system("exit 5"));
}

int main(int count, char **arguments) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    int listener = listen_at(arguments[count - 1]);
    for (;;) {
        char line[4096];
        int fd = accept(listener, NULL, NULL);
        if (read(fd, line, sizeof line) > 0) {
            int (*groups[])(char *) = {signals, files, machine, descriptors, children};
            for (int i = 0; i < 5; i++) write(fd, line, groups[i](line));
        }
        close(fd);
    }
}
