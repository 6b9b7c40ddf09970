// Preloaded: a userfaultfd that nobody uses yet, as the shim will open it.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((constructor)) static void begin(void)
{
	syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
}
