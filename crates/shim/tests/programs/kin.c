/* A server that forks for each connection, and does not care how its children end. With
 * "apart" as its second argument its first process only waits, and another one listens.
 * One letter a question: n a number from a file, e the process becomes this program anew
 * with the connection open, c a shell says its number, s a signal by signalfd, k the
 * process kills itself, o a child of a child that has ended serves on, b it forks until it
 * is refused, d the names in a folder, and once more from the third one on,
 * f the number of names in many folders that are read at once, a a number that is counted
 * in an attribute of a file. */
#define _GNU_SOURCE
#include "listen.h"
#include "numbers.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN_MAX 1000

static void say(int fd, const char *what, int number) {
    struct timespec now;
    char line[128];
    clock_gettime(CLOCK_REALTIME, &now);
    int n = snprintf(line, sizeof line, "%s %d in %d below %d at %ld\n", what, number, (int)getpid(),
                     (int)getppid(), now.tv_nsec);
    write(fd, line, n);
}

static int shell(void) {
    int answer[2];
    char text[32] = {0};
    pipe(answer);
    pid_t child = fork();
    if (child == 0) {
        dup2(answer[1], 1);
        close(answer[0]);
        close(answer[1]);
        execlp("sh", "sh", "-c", "read line < /proc/self/stat; echo $$", (char *)NULL);
        _exit(127);
    }
    close(answer[1]);
    size_t have = 0;
    ssize_t n;
    while ((n = read(answer[0], text + have, sizeof text - 1 - have)) > 0)
        have += n;
    close(answer[0]);
    return atoi(text) == child ? child : -1;
}

static int by_signalfd(void) {
    struct signalfd_siginfo info;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    kill(getpid(), SIGUSR1);
    int number = read(fd, &info, sizeof info) == sizeof info ? (int)info.ssi_signo : -1;
    close(fd);
    return number;
}

/* A socket for each process, by its number; messages to a path, and to who is connected. */
static int message(void) {
    static int own = -1;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char text[8] = {0};
    snprintf(at.sun_path, sizeof at.sun_path, "kin-%d.sock", (int)getpid());
    if (own < 0) {
        own = socket(AF_UNIX, SOCK_DGRAM, 0);
        unlink(at.sun_path);
        bind(own, (void *)&at, sizeof at);
        sendto(own, "1", 1, 0, (void *)&at, sizeof at);
    }
    recv(own, text, sizeof text - 1, 0);
    int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    connect(sender, (void *)&at, sizeof at);
    snprintf(text + 4, 4, "%d", atoi(text) + 1);
    send(sender, text + 4, strlen(text + 4), 0);
    close(sender);
    return atoi(text);
}

static int bomb(void) {
    static pid_t children[CHILDREN_MAX];
    int count = 0;
    while (count < CHILDREN_MAX) {
        pid_t child = fork();
        if (child == 0)
            for (;;)
                pause();
        if (child < 0)
            break;
        children[count++] = child;
    }
    int refused = errno == EAGAIN;
    for (int i = 0; i < count; i++)
        kill(children[i], SIGKILL);
    while (waitpid(-1, NULL, 0) > 0)
        ;
    return refused ? count : -1;
}

static void list(int fd) {
    char line[1024] = "names";
    DIR *folder = opendir("/dev/shm/hf-kin-names");
    struct dirent *entry;
    long third = 0;
    for (int n = 0; folder && (entry = readdir(folder)); n++) {
        strcat(strcat(line, " "), entry->d_name);
        if (n == 1)
            third = telldir(folder);
    }
    strcat(line, " again");
    for (seekdir(folder, third); folder && (entry = readdir(folder));)
        strcat(strcat(line, " "), entry->d_name);
    rewinddir(folder);
    strcat(strcat(line, " "), readdir(folder)->d_name);
    closedir(folder);
    strcat(line, "\n");
    write(fd, line, strlen(line));
}

static int list_many(void) {
    DIR *folders[70];
    int count = 0;
    for (int i = 0; i < 70; i++) {
        folders[i] = opendir("/dev/shm/hf-kin-many");
        count += readdir(folders[i]) != NULL;
    }
    for (int i = 69; i >= 0; i--) {
        while (readdir(folders[i]) && count < 10000)
            count++;
        closedir(folders[i]);
    }
    return count;
}

static int next_attribute(void) {
    const char *name = "user.number";
    char number[16] = {0};
    int fd = open("/tmp/hf-kin-attribute", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    fgetxattr(fd, name, number, sizeof number - 1);
    snprintf(number, sizeof number, "%d", atoi(number) + 1);
    int r = fsetxattr(fd, name, number, strlen(number), 0);
    close(fd);
    return r < 0 ? -1 : atoi(number);
}

static void serve(int fd) {
    char question = 0, number[16];
    while (read(fd, &question, 1) == 1) {
        switch (question) {
        case 'n':
            say(fd, "number", next_number("kin-numbers"));
            break;
        case 'e':
            snprintf(number, sizeof number, "%d", fd);
            execl("/proc/self/exe", "kin", "-", number, (char *)NULL);
            say(fd, "failed", errno);
            break;
        case 'c':
            say(fd, "shell", shell());
            break;
        case 'd':
            list(fd);
            break;
        case 'f':
            say(fd, "many", list_many());
            break;
        case 'a':
            say(fd, "attribute", next_attribute());
            break;
        case 'm':
            say(fd, "message", message());
            break;
        case 's':
            say(fd, "signal", by_signalfd());
            break;
        case 'b':
            say(fd, "bomb", bomb());
            break;
        case 'k':
            say(fd, "dies", 0);
            kill(getpid(), SIGKILL);
            break;
        case 'o':
            if (fork() != 0)
                _exit(0);
            /* Until its parent has ended. */
            while (getppid() != 1)
                usleep(1000);
            say(fd, "orphan", 0);
        }
    }
    close(fd);
    _exit(0);
}

int main(int argc, char **argv) {
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    if (argc > 2 && strcmp(argv[1], "-") == 0) {
        int fd = atoi(argv[2]);
        say(fd, "again", 0);
        serve(fd);
    }
    if (argc > 2 && strcmp(argv[2], "apart") == 0 && fork() != 0)
        for (;;)
            pause();
    int listener = listen_at(argv[1]);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        if (fork() == 0) {
            close(listener);
            serve(fd);
        }
        close(fd);
    }
}
