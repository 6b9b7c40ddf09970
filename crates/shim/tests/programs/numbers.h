#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* A number that all processes of a server count, in a file and under its lock. */

static int next_number(const char *file) {
    char text[16] = {0};
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    flock(fd, LOCK_EX);
    pread(fd, text, sizeof text - 1, 0);
    int number = atoi(text) + 1;
    snprintf(text, sizeof text, "%d\n", number);
    pwrite(fd, text, strlen(text), 0);
    close(fd);
    return number;
}
