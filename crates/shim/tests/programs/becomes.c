/* Becomes itself in a given form of exec, then answers each connection with its
 * arguments in reverse. `serving`: execs when it already listens. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

static int listener(int port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 16))
		exit(1);
	return fd;
}

static void serve(int fd, int argc, char **argv)
{
	for (;;) {
		int conn = accept(fd, NULL, NULL);
		char line[256] = "";

		if (conn < 0)
			continue;
		for (int i = argc - 1; i >= 3; i--) {
			strcat(line, argv[i]);
			strcat(line, i > 3 ? " " : ": ");
		}
		strcat(line, getenv("MARK") ? getenv("MARK") : "lost");
		strcat(line, "\n");
		if (write(conn, line, strlen(line)) < 0)
			perror("write");
		close(conn);
	}
}

int main(int argc, char **argv)
{
	const char *form = argv[1], *self = argv[0];
	char *again[16] = { argv[0], "now" }, *mark[] = { "MARK=kept", NULL };
	char **a = argv + 2;
	int fd;

	if (!strcmp(form, "now"))
		serve(listener(atoi(argv[2])), argc, argv);
	if (!strcmp(form, "held"))
		serve(atoi(argv[2]), argc, argv);
	setenv("MARK", "kept", 1);
	/* A program that does not exist changes nothing. */
	execl("/nonexistent", "x", NULL);
	memcpy(again + 2, a, (argc - 1) * sizeof(*a));
	if (!strcmp(form, "execl"))
		execl(self, self, "now", a[0], a[1], a[2], a[3], a[4], a[5], a[6], NULL);
	if (!strcmp(form, "execlp"))
		execlp(self, self, "now", a[0], a[1], a[2], a[3], a[4], a[5], a[6], NULL);
	if (!strcmp(form, "execle"))
		execle(self, self, "now", a[0], a[1], a[2], a[3], a[4], a[5], a[6], NULL, mark);
	if (!strcmp(form, "execv"))
		execv(self, again);
	if (!strcmp(form, "execvp"))
		execvp(self, again);
	if (!strcmp(form, "execvpe"))
		execvpe(self, again, mark);
	if (!strcmp(form, "fexecve") && (fd = open(self, O_RDONLY | O_CLOEXEC)) >= 0)
		fexecve(fd, again, mark);
	if (!strcmp(form, "syscall"))
		syscall(SYS_execve, self, again, environ);
	if (!strcmp(form, "serving")) {
		char number[16];

		snprintf(number, sizeof(number), "%d", listener(atoi(argv[2])));
		execl(self, self, "held", number, a[1], NULL);
	}
	return 1;
}
