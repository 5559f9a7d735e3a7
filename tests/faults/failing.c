/* Preloaded into a program: makes the n-th call of one function fail, as RM_FAIL says: "fsync:2" the second, "fork:3+" the third and all
 * later ones. clock_gettime does not fail: from there on the wall clock is a day ahead. With RM_FAIL_ONLY=name only programs of that name are hit. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool fails(const char *name)
{
    static int calls;
    const char *want = getenv("RM_FAIL"), *only = getenv("RM_FAIL_ONLY");
    size_t n = strlen(name);
    if (want == NULL || strncmp(want, name, n) != 0 || want[n] != ':') return false;
    if (only && strcmp(program_invocation_short_name, only) != 0) return false;
    int at = atoi(want + n + 1), call = __sync_add_and_fetch(&calls, 1);
    return call == at || (call > at && want[strlen(want) - 1] == '+');
}

#ifdef FAILING_MALLOC       /* a library of its own: the sanitizers bring their own malloc */
extern void *__libc_malloc(size_t n);       /* glibc's own door, since dlsym() may allocate */

void *malloc(size_t n)
{
    if (fails("malloc")) { errno = ENOMEM; return NULL; }
    return __libc_malloc(n);
}
#endif

int fsync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    if (fails("fsync")) { errno = EIO; return -1; }
    return real(fd);
}

pid_t fork(void)
{
    pid_t (*real)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
    if (fails("fork")) { errno = EAGAIN; return -1; }
    return real();
}

int pipe2(int fd[2], int flags)
{
    int (*real)(int *, int) = (int (*)(int *, int))dlsym(RTLD_NEXT, "pipe2");
    if (fails("pipe2")) { errno = EMFILE; return -1; }
    return real(fd, flags);
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    if (fails("rename")) { errno = EIO; return -1; }
    return real(from, to);
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real(id, t);
    if (rc == 0 && id == CLOCK_REALTIME && fails("clock_gettime")) t->tv_sec += 86400;
    return rc;
}
