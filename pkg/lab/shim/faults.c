/*
 * Loaded into a server before the C library (LD_PRELOAD), it moves the server's wall clock and remembers how much of
 * each append-only file has reached the disk. It shares the file named by DROPCTL_FAULTS with us (shim.go).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define FILES 64
#define NAME 56

/* The layout is known to shim.go. Unused entries have an empty name. */
struct control {
	int64_t clock_ns; /* what the wall clock is ahead */
	struct { char name[NAME]; int64_t length; } synced[FILES];
};

static struct control *control;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

static void give_up(const char *what)
{
	perror(what);
	_exit(127);
}

__attribute__((constructor)) static void open_control(void)
{
	const char *path = getenv("DROPCTL_FAULTS");
	if (!path)
		return;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *control) < 0)
		give_up(path);
	void *shared = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED)
		give_up(path);
	close(fd);
	control = shared;
}

/* The function that ours stands in front of. */
#define REAL(name) \
	static __typeof__(&name) real; \
	if (!real && !(real = (__typeof__(&name))dlsym(RTLD_NEXT, #name))) \
		give_up(#name)

/* ---- The wall clock ---------------------------------------------------------------------------------------------- */

static void shift(struct timespec *t)
{
	if (!control)
		return;
	const int64_t second = 1000000000;
	int64_t ns = t->tv_nsec + __atomic_load_n(&control->clock_ns, __ATOMIC_RELAXED);
	t->tv_sec += ns / second;
	t->tv_nsec = ns % second;
	if (t->tv_nsec < 0) {
		t->tv_sec--;
		t->tv_nsec += second;
	}
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	REAL(clock_gettime);
	int result = real(clock, t);
	if (result == 0 && (clock == CLOCK_REALTIME
#ifdef CLOCK_REALTIME_COARSE
			|| clock == CLOCK_REALTIME_COARSE
#endif
			))
		shift(t);
	return result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	(void)zone; /* obsolete, and nobody asks */
	struct timespec now;
	if (clock_gettime(CLOCK_REALTIME, &now) < 0)
		return -1;
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t)
{
	struct timespec now;
	if (clock_gettime(CLOCK_REALTIME, &now) < 0)
		return (time_t)-1;
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}

/* ---- What reached the disk --------------------------------------------------------------------------------------- */

/* Redis names each file of its log for ever: appendonly.aof.<n>.incr.aof. */
static int is_log(int fd, char name[NAME])
{
	char link[64], path[4096];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	if (n < 0)
		return 0;
	path[n] = 0;
	const char *base = strrchr(path, '/');
	base = base ? base + 1 : path;
	if (!strstr(base, ".incr.aof") || strlen(base) >= NAME)
		return 0;
	strcpy(name, base);
	return 1;
}

static void remember(const char *name, int64_t length)
{
	pthread_mutex_lock(&writing);
	int i = 0;
	while (i < FILES && control->synced[i].name[0] && strcmp(control->synced[i].name, name))
		i++;
	if (i == FILES) {
		fputs("the fault shim knows too many append-only files\n", stderr);
		_exit(127);
	}
	control->synced[i].length = length;
	strcpy(control->synced[i].name, name);
	pthread_mutex_unlock(&writing);
}

static int sync_and_remember(int (*sync)(int), int fd)
{
	char name[NAME];
	struct stat before; /* what is written meanwhile may or may not get there */
	int ours = control && is_log(fd, name) && fstat(fd, &before) == 0;
	int result = sync(fd);
	if (result == 0 && ours)
		remember(name, before.st_size);
	return result;
}

int fsync(int fd)
{
	REAL(fsync);
	return sync_and_remember(real, fd);
}

int fdatasync(int fd)
{
	REAL(fdatasync);
	return sync_and_remember(real, fd);
}
