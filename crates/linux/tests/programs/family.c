// A server of four processes in a pid namespace, with one of each thing that processes share: the
// first is number 1, its children are "one", which leads a session and has threads and a child of
// its own, and "two", which has no rights. A connection is answered by what all have come to.
// SIGUSR1 starts another child, SIGUSR2 one that ends at once.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ONE, TWO, GRANDCHILD, WHO };
#define TICKS 3

static struct {
	volatile int ready[WHO], asked[WHO], done[WHO];
	char said[WHO][256];
	volatile long ticks[TICKS];
	volatile int numbers[TICKS];
} *shared;

static int pair[2], numbered, counter;
static int queue[2];

static void tick(int which)
{
	shared->ticks[which]++;
	shared->numbers[which] = syscall(SYS_gettid);
	usleep(1000);
}

static void *ticks(void *which)
{
	while (1)
		tick((long)which);
}

static void waits_to_be_asked(int who)
{
	shared->ready[who] = 1;
	while (!shared->asked[who])
		usleep(1000);
}

static void ask(int who)
{
	shared->asked[who] = 1;
	while (!shared->done[who])
		usleep(1000);
}

static int reads(int fd, char *into, int len)
{
	int got = read(fd, into, len);

	into[got < 0 ? 0 : got] = 0;
	return got;
}

static void grandchild(void)
{
	shared->ready[GRANDCHILD] = 1;
	while (!shared->asked[GRANDCHILD])
		tick(2);
	sprintf(shared->said[GRANDCHILD], "%d of %d session %d", getpid(), getppid(), getsid(0));
	shared->done[GRANDCHILD] = 1;
	while (1)
		tick(2);
}

static void one(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_start = 5, .l_len = 2 };
	char heard[64], part[8];
	pthread_t thread;

	setsid();
	close(pair[0]);
	if (fcntl(numbered, F_SETLK, &lock))
		exit(1);
	for (long which = 0; which < 2; which++)
		pthread_create(&thread, NULL, ticks, (void *)which);
	while (!shared->numbers[0] || !shared->numbers[1])
		usleep(1000);
	if (!fork())
		grandchild();
	write(queue[1], "of a sibling", 12);
	waits_to_be_asked(ONE);
	reads(pair[1], heard, 63);
	reads(numbered, part, 3);
	sprintf(shared->said[ONE], "%d of %d session %d heard %s, read %s", getpid(), getppid(),
		getsid(0), heard, part);
	shared->done[ONE] = 1;
	while (1)
		pause();
}

static void two(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	int set = epoll_create1(0), ready;
	char heard[64];

	epoll_ctl(set, EPOLL_CTL_ADD, queue[0], &event);
	setpgid(0, 0);
	if (setgid(65534) || setuid(65534))
		exit(1);
	waits_to_be_asked(TWO);
	ready = epoll_wait(set, &event, 1, 0);
	reads(queue[0], heard, 63);
	sprintf(shared->said[TWO], "%d of %d group %d user %d heard %s, ready %d", getpid(),
		getppid(), getpgid(0), getuid(), heard, ready);
	shared->done[TWO] = 1;
	while (shared->asked[TWO] != 2)
		usleep(1000);
	exit(7);
}

static int starts(void (*what)(void), int who)
{
	int pid = fork();

	if (!pid)
		what();
	while (!shared->ready[who])
		usleep(1000);
	return pid;
}

static void another(int signal)
{
	if (!fork() && signal == SIGUSR1)
		while (1)
			pause();
	else if (getpid() != 1)
		_exit(0);
}

static void answer(int to, int second)
{
	struct flock lock = { .l_type = F_WRLCK, .l_len = 0 };
	long before[TICKS], last = 0;
	int goes_on = 1, status = 0, next, len;
	char part[8], text[2048];
	uint64_t count = 0;

	memcpy(before, (void *)shared->ticks, sizeof(before));
	usleep(100000);
	for (int which = 0; which < TICKS; which++)
		goes_on &= shared->ticks[which] > before[which] && before[which] > 1000000;
	for (int who = 0; who < WHO; who++)
		ask(who);
	reads(numbered, part, 3);
	read(counter, &count, 8);
	fcntl(numbered, F_GETLK, &lock);
	next = fork();
	if (!next)
		_exit(3);
	waitpid(next, &status, 0);
	shared->asked[TWO] = 2;
	len = sprintf(text, "%d: ticks %d of %d %d %d; %s; %s; %s; read %s, count %d, locked by %d, "
		      "next %d ended %d", getpid(), goes_on, shared->numbers[0], shared->numbers[1],
		      shared->numbers[2], shared->said[ONE], shared->said[TWO],
		      shared->said[GRANDCHILD], part, (int)count, lock.l_pid, next,
		      WEXITSTATUS(status));
	last = waitpid(second, &status, 0);
	len += sprintf(text + len, ", %ld ended %d\n", last, WEXITSTATUS(status));
	write(to, text, len);
	close(to);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1, second;
	struct sigaction action = { .sa_handler = another, .sa_flags = SA_RESTART };

	chdir("/");
	shared = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int which = 0; which < TICKS; which++)
		shared->ticks[which] = 1000000;
	numbered = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0644);
	write(numbered, "abcdefghi", 9);
	lseek(numbered, 1, SEEK_SET);
	counter = eventfd(41, 0);
	pipe(queue);
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	write(pair[0], "its parent", 10);
	starts(one, ONE);
	second = starts(two, TWO);
	close(pair[1]);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	bind(listener, (struct sockaddr *)&address, sizeof(address));
	listen(listener, 8);
	while (1)
		answer(accept(listener, NULL, NULL), second);
}
