/* Opens what its arguments name, as HOW:PATH, before it listens; "late-" before
 * HOW: after its first client came. Each client is told what came of it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Where the file stands that was just opened, or -1. */
static long position(const char *how, const char *path)
{
	FILE *stream;

	if (!strcmp(how, "open"))
		return lseek(open(path, O_RDONLY), 0, SEEK_CUR);
	if (!strcmp(how, "both"))
		return lseek(open(path, O_RDWR), 0, SEEK_CUR);
	if (!strcmp(how, "dlopen"))
		return dlopen(path, RTLD_NOW | RTLD_LOCAL) ? 0 : -1;
	if (!strcmp(how, "dlmopen"))
		return dlmopen(LM_ID_BASE, path, RTLD_NOW) ? 0 : -1;
	/* Any other word is a stream's mode. */
	stream = fopen(path, how);
	return stream ? ftell(stream) : -1;
}

static void open_all(char **what, int late)
{
	for (; *what; what++) {
		char *how = strdup(*what), *path = strchr(how, ':');
		int is_late = !strncmp(how, "late-", 5);

		/* What is done already is a number. */
		if (!path || is_late != late)
			continue;
		*path++ = 0;
		sprintf(*what, "%ld", position(how + 5 * late, path));
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])) };
	int one = 1, fd, served = 0;

	open_all(argv + 2, 0);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 16))
		return 1;
	for (;;) {
		int conn = accept(fd, NULL, NULL);
		char line[4096] = "";

		if (conn < 0)
			continue;
		if (!served++)
			open_all(argv + 2, 1);
		for (int i = 2; i < argc; i++)
			strcat(strcat(line, argv[i]), i + 1 < argc ? " " : "\n");
		if (write(conn, line, strlen(line)) < 0)
			perror("write");
		close(conn);
	}
}
