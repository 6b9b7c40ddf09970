// A server with one of each thing that an image must not forget. Every line on its
// port is answered by what it has come to; "go" releases what waits.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static pthread_barrier_t barrier;
static sem_t semaphore;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, robust;
static pthread_t sleeper, joiner;
static volatile int at_barrier, at_semaphore, joined, timed, handled, on_stack;
static volatile int release;
static char stack[65536];

static void *barriers(void *x) { pthread_barrier_wait(&barrier); at_barrier = 1; return x; }
static void *semaphores(void *x) { sem_wait(&semaphore); at_semaphore = 1; return x; }
static void *sleeps(void *x) { while (!release) usleep(1000); return x; }
static void *joins(void *x) { pthread_join(sleeper, NULL); joined = 1; return x; }

static void *times(void *x)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += 2;
	timed = pthread_mutex_timedlock(&mutex, &t);
	return x;
}

static void handler(int signal)
{
	char here;

	handled = signal;
	on_stack = &here > stack && &here < stack + sizeof(stack);
}

static void *alternate(void *x)
{
	stack_t s = { .ss_sp = stack, .ss_size = sizeof(stack) };

	sigaltstack(&s, NULL);
	while (!release)
		usleep(1000);
	pthread_kill(pthread_self(), SIGUSR1);
	return x;
}

static void start(void *(*routine)(void *)) { pthread_t t; pthread_create(&t, NULL, routine, NULL); }

int main(int argc, char **argv)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])) };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	struct itimerspec half = { { 0, 0 }, { 0, 500000000 } };
	struct rlimit cores = { 4096, 8192 };
	sigset_t set;

	syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	pthread_barrier_init(&barrier, NULL, 2);
	sem_init(&semaphore, 0, 0);
	pthread_mutex_lock(&mutex);
	sigaction(SIGUSR1, &action, NULL);
	int *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	shared[0] = 11;
	int memory = memfd_create("odd", MFD_CLOEXEC);
	ftruncate(memory, 4096);
	int *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	mapped[0] = 22;
	char *guarded = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	strcpy(guarded, "guarded");
	mprotect(guarded, 4096, PROT_NONE);
	int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	int counter = eventfd(5, EFD_SEMAPHORE | EFD_NONBLOCK);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	int signals = signalfd(-1, &set, SFD_NONBLOCK);
	kill(getpid(), SIGUSR2);
	umask(0137);
	chdir(argv[2]);
	setrlimit(RLIMIT_CORE, &cores);
	int file = open("kept", O_RDWR | O_CREAT, 0600), twin = dup2(file, 77);
	write(file, "0123456789", 10);
	lseek(file, 4, SEEK_SET);
	int notify = inotify_init1(IN_NONBLOCK);
	inotify_rm_watch(notify, inotify_add_watch(notify, "/", IN_DELETE));
	char drain[4096];
	read(notify, drain, sizeof(drain));
	int watch = inotify_add_watch(notify, argv[2], IN_CREATE);
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 0xabcdef };
	epoll_ctl(epoll, EPOLL_CTL_ADD, counter, &event);
	start(barriers);
	start(semaphores);
	pthread_create(&sleeper, NULL, sleeps, NULL);
	start(joins);
	start(times);
	start(alternate);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	bind(listener, (void *)&address, sizeof(address));
	listen(listener, 5);
	timerfd_settime(timer, 0, &half, NULL);
	for (;;) {
		int client = accept(listener, NULL, NULL);
		struct signalfd_siginfo info = { 0 };
		unsigned long long rung = 0, count = 0;
		char byte = 0, text[512], event_bytes[512];

		close(open("made", O_CREAT | O_WRONLY, 0666));
		struct inotify_event *seen = (void *)event_bytes;
		int noticed = read(notify, event_bytes, sizeof(event_bytes)) > 0 && seen->wd == watch;
		struct stat made;
		stat("made", &made);
		unlink("made");
		struct pollfd wait = { timer, POLLIN, 0 };
		poll(&wait, 1, 3000);
		read(timer, &rung, 8);
		read(counter, &count, 8);
		read(signals, &info, sizeof(info));
		int ready = epoll_wait(epoll, &event, 1, 0);
		read(twin, &byte, 1);
		int next = lseek(file, 0, SEEK_CUR);
		release = 1;
		sem_post(&semaphore);
		pthread_barrier_wait(&barrier);
		for (int i = 0; i < 4000 && !(at_barrier && at_semaphore && joined && timed && handled); i++)
			usleep(1000);
		mprotect(guarded, 4096, PROT_READ);
		getrlimit(RLIMIT_CORE, &cores);
		pread(memory, &on, 4, 0);
		int length = sprintf(text,
			"barrier %d semaphore %d joined %d timed %d handled %d on its stack %d shared %d "
			"memfd %d %d %s timer %llu event %llu signal %d notified %d mode %o file %c %d "
			"epoll %d %llx core %ld\n",
			at_barrier, at_semaphore, joined, timed, handled, on_stack, shared[0], mapped[0], on,
			guarded, rung, count, info.ssi_signo, noticed, made.st_mode & 0777, byte, next,
			ready, (unsigned long long)event.data.u64, (long)cores.rlim_cur);
		write(client, text, length);
		close(client);
	}
}
