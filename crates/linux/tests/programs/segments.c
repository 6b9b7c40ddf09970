// A server of two processes in a pid and an IPC namespace, which share memory in every way that has
// a name: a SysV segment with a key, one that was removed while both have it attached, the second
// process for reading only, and a file of shm_open, which stays open. A connection is answered by what
// both find.
// With an argument behind the port it has one thing more, which no image can have.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <unistd.h>

enum { KEY = 0xbeef, KEYED = 56, REMOVED = 3 * 4096 + 1, NAMED = 8192 };

static struct {
	volatile int asked, done;
	char said[256];
} *shared;

static struct {
	char text[32];
	volatile int count;
} *keyed;

static char *removed, *named;
static int keyed_id, removed_id, file;

static int attaches(int id)
{
	struct shmid_ds about;

	return shmctl(id, IPC_STAT, &about) ? -errno : (int)about.shm_nattch;
}

static int mode(int id)
{
	struct shmid_ds about;

	return shmctl(id, IPC_STAT, &about) ? -errno : about.shm_perm.mode;
}

static void second(void)
{
	shmdt(removed);
	removed = shmat(removed_id, removed, SHM_RDONLY);
	// Another user that keeps what it is told to keep.
	if (prctl(PR_SET_KEEPCAPS, 1) || setresuid(-1, 65534, -1))
		_exit(1);
	shared->done = 1;
	while (1) {
		while (!shared->asked)
			usleep(1000);
		keyed->count++;
		sprintf(shared->said, "%d keeps %d: %s %d, %s %.4s %d, %s at %p", geteuid(),
			prctl(PR_GET_KEEPCAPS), keyed->text, keyed->count, removed, removed + REMOVED - 5,
			mprotect(removed, 4096, PROT_READ | PROT_WRITE), named, (void *)removed);
		shared->asked = 0;
		shared->done = 1;
	}
}

static void say(int to)
{
	char line[1024];
	int count = keyed->count, taken;

	shared->done = 0;
	shared->asked = 1;
	while (!shared->done)
		usleep(1000);
	taken = shmget(KEY, KEYED, 0) == keyed_id && keyed->count == count + 1 &&
		pread(file, line, 6, 0) == 6 && !strcmp(line, named);
	sprintf(line, "%s; %d: %d attaches, mode %o; %d: %d attaches, mode %o; %s by key\n", shared->said,
		keyed_id, attaches(keyed_id), mode(keyed_id), removed_id, attaches(removed_id),
		mode(removed_id), taken ? "found" : "not found");
	if (write(to, line, strlen(line)) < 0)
		_exit(1);
}

static void has(const char *what)
{
	struct shmid_ds about;

	if (!strcmp(what, "semaphores"))
		semget(IPC_PRIVATE, 1, 0600);
	if (!strcmp(what, "queue"))
		msgget(IPC_PRIVATE, 0600);
	if (!strcmp(what, "idle"))
		shmget(IPC_PRIVATE, 4096, 0600);
	if (!strcmp(what, "locked"))
		shmctl(keyed_id, SHM_LOCK, &about);
	if (!strcmp(what, "part"))
		munmap(removed, 4096);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {AF_INET, htons(atoi(argv[1])), {htonl(INADDR_LOOPBACK)}};
	int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	const char *name = argv[2];

	shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	// Numbers that a fresh namespace would not give.
	for (int i = 0; i < 5; i++)
		shmctl(shmget(IPC_PRIVATE, 1, 0600), IPC_RMID, 0);
	keyed_id = shmget(KEY, KEYED, IPC_CREAT | IPC_EXCL | 0640);
	keyed = shmat(keyed_id, 0, 0);
	removed_id = shmget(IPC_PRIVATE, REMOVED, 0600);
	removed = shmat(removed_id, 0, 0);
	shmctl(removed_id, IPC_RMID, 0);
	file = shm_open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (ftruncate(file, NAMED))
		return 1;
	named = mmap(0, NAMED, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (keyed == (void *)-1 || removed == (void *)-1 || named == MAP_FAILED)
		return 1;
	strcpy(keyed->text, "keyed");
	strcpy(removed, "removed");
	strcpy(removed + REMOVED - 5, "end");
	strcpy(named, "named");
	if (fork() == 0)
		second();
	while (!shared->done)
		usleep(1000);
	if (argc > 3)
		has(argv[3]);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener, (void *)&at, sizeof(at)) || listen(listener, 4))
		return 1;
	while (1) {
		int connection = accept(listener, 0, 0);

		say(connection);
		close(connection);
	}
}
