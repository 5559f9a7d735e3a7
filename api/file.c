#include "api/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef RM_LIBEXEC
#define RM_LIBEXEC "/usr/local/libexec/ringmaster"
#endif

static int io_error(struct error *err, const char *what, const char *path)
{
    int e = errno;
    return error_set(err, status_of_errno(e), "%s %s: %s", what, path, strerror(e));
}

int file_read(const char *path, size_t max, char **data, size_t *len, struct error *err)
{
    *data = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);     /* NONBLOCK: a FIFO must not hang us */
    if (fd < 0) return io_error(err, "open", path);
    struct stat st;
    int rc = OK;
    if (fstat(fd, &st) < 0) rc = io_error(err, "stat", path);
    else if (!S_ISREG(st.st_mode)) rc = error_set(err, E_INVALID, "%s is not a regular file", path);
    else if ((unsigned long long)st.st_size > max)
        rc = error_set(err, E_LIMIT, "%s has %lld bytes, at most %zu are taken", path, (long long)st.st_size, max);
    if (rc == OK) {
        size_t cap = (size_t)st.st_size, n = 0;
        char *buf = xmalloc(cap + 1);
        while (n < cap) {
            ssize_t got = read(fd, buf + n, cap - n);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) { rc = io_error(err, "read", path); break; }
            if (got == 0) break;
            n += (size_t)got;
        }
        if (rc == OK) {
            buf[n] = '\0';
            *data = buf;
            *len = n;
        } else free(buf);
    }
    (void)close(fd);
    return rc;
}

int write_all(int fd, const void *data, size_t len, struct error *err)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            int e = errno;
            return error_set(err, status_of_errno(e), "write: %s", strerror(e));
        }
        p += n;
        len -= (size_t)n;
    }
    return OK;
}

int fsync_parent(const char *path, struct error *err)
{
    char *dir = xstrdup(path);
    char *slash = strrchr(dir, '/');
    if (slash == dir) slash[1] = '\0';
    else if (slash) *slash = '\0';
    else { free(dir); dir = xstrdup("."); }
    int rc = OK, fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) rc = io_error(err, "open", dir);
    else if (fsync(fd) < 0) rc = io_error(err, "fsync", dir);
    if (fd >= 0) (void)close(fd);
    free(dir);
    return rc;
}

int file_write(const char *path, const void *data, size_t len, struct error *err)
{
    char *tmp = xasprintf("%s.tmp-%ld", path, (long)getpid());
    int rc = OK, fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) { rc = io_error(err, "open", tmp); goto out; }
    if ((rc = write_all(fd, data, len, err)) != OK) { (void)error_prefix(err, "%s", path); goto out; }
    if (fsync(fd) < 0 || rename(tmp, path) < 0) { rc = io_error(err, "publish", path); goto out; }
    rc = fsync_parent(path, err);
out:
    if (fd >= 0) (void)close(fd);
    if (rc != OK && fd >= 0) (void)unlink(tmp);
    free(tmp);
    return rc;
}

int make_dirs(const char *path, struct error *err)
{
    char *p = xstrdup(path);
    int rc = OK;
    for (char *s = p + 1; rc == OK; s++) {
        if (*s != '/' && *s != '\0') continue;
        char keep = *s;
        *s = '\0';
        struct stat st;
        if (mkdir(p, 0755) < 0 && errno != EEXIST) rc = io_error(err, "make folder", p);
        else if (stat(p, &st) < 0 || !S_ISDIR(st.st_mode)) rc = error_set(err, E_INVALID, "%s is not a folder", p);
        *s = keep;
        if (keep == '\0') break;
    }
    free(p);
    return rc;
}

static int remove_at(int dir, const char *name, const char *path, struct error *err)
{
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT) return OK;
    if (errno != EISDIR && errno != EPERM) return io_error(err, "remove", path);
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc = OK;
    if (fd < 0) return io_error(err, "open", path);
    DIR *d = fdopendir(fd);
    if (d == NULL) { (void)close(fd); return io_error(err, "open", path); }
    for (struct dirent *e; rc == OK && (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) rc = remove_at(fd, e->d_name, path, err);
    (void)closedir(d);
    if (rc == OK && unlinkat(dir, name, AT_REMOVEDIR) < 0) rc = io_error(err, "remove", path);
    return rc;
}

int remove_tree(const char *path, struct error *err) { return remove_at(AT_FDCWD, path, path, err); }

char *sibling_program(const char *name)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = '\0';
        char *slash = strrchr(self, '/');
        if (slash) {
            *slash = '\0';
            char *p = xasprintf("%s/%s", self, name);
            if (access(p, X_OK) == 0) return p;
            free(p);
            /* tests live one folder down from the programs they run */
            p = xasprintf("%s/../%s", self, name);
            if (access(p, X_OK) == 0) return p;
            free(p);
        }
    }
    char *p = xasprintf("%s/%s", RM_LIBEXEC, name);
    if (access(p, X_OK) == 0) return p;
    free(p);
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t len = strcspn(path, ":");
        p = xasprintf("%.*s/%s", (int)len, path, name);
        if (len > 0 && access(p, X_OK) == 0) return p;
        free(p);
        path += len + (path[len] == ':');
    }
    return NULL;
}

void open_standard_fds(void)
{
    for (int fd = 0; fd <= 2; fd++)         /* in order: the lowest free number is the one that is missing */
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd) _exit(70);
}
