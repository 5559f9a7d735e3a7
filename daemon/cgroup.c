#include "daemon/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "api/error.h"

/* Where cgroup v2 is mounted whole: /sys/fs/cgroup, or /sys/fs/cgroup/unified beside v1. The caller frees; NULL: nowhere. */
static char *mount_point(void)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char line[4096], root[1024], at[1024], *found = NULL;
    while (f && !found && fgets(line, sizeof line, f))
        if (strstr(line, " - cgroup2 ") && sscanf(line, "%*d %*d %*s %1023s %1023s", root, at) == 2 && strcmp(root, "/") == 0) found = xstrdup(at);
    if (f) (void)fclose(f);
    return found;
}

/* Our own group: the path behind "0::". */
static char *own_path(void)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[4096], *found = NULL;
    while (f && !found && fgets(line, sizeof line, f))
        if (strncmp(line, "0::/", 4) == 0) {
            line[strcspn(line, "\n")] = '\0';
            found = xstrdup(strcmp(line + 3, "/") == 0 ? "" : line + 3);
        }
    if (f) (void)fclose(f);
    return found;
}

/* systemd marks what it hands over; the root group, of a container for instance, has no other master. */
static bool ours_to_arrange(const char *dir, const char *path)
{
    static const char *const marks[] = { "user.delegate", "trusted.delegate" };
    char v[4];
    if (*path == '\0') return true;
    for (size_t i = 0; i < 2; i++)
        if (getxattr(dir, marks[i], v, sizeof v) == 1 && v[0] == '1') return true;
    return false;
}

static bool write_to(const char *dir, const char *name, const char *text)
{
    char *path = xasprintf("%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) (void)close(fd);
    free(path);
    return ok;
}

char *cgroup_make(const char *nonce)
{
    char *at = mount_point(), *path = at ? own_path() : NULL, *own = path ? xasprintf("%s%s", at, path) : NULL, *dir = own ? xasprintf("%s/ringmaster-%s", own, nonce) : NULL, *kill_file = dir ? xasprintf("%s/cgroup.kill", dir) : NULL;
    bool ok = dir && ours_to_arrange(own, path) && mkdir(dir, 0700) == 0;
    if (ok && access(kill_file, W_OK) != 0) {           /* before Linux 5.14: nothing gained */
        (void)rmdir(dir);
        ok = false;
    }
    free(at);
    free(path);
    free(own);
    free(kill_file);
    if (ok) return dir;
    free(dir);
    return NULL;
}

void cgroup_enter(const char *dir) { (void)write_to(dir, "cgroup.procs", "0\n"); }

void cgroup_kill(const char *dir) { (void)write_to(dir, "cgroup.kill", "1\n"); }

bool cgroup_populated(const char *dir)
{
    char *path = xasprintf("%s/cgroup.events", dir), text[256] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0) (void)close(fd);
    free(path);
    return n > 0 && strstr(text, "populated 1") != NULL;
}

/* What ran in it may have made groups of its own beneath: their folders go first. */
static void remove_beneath(const char *dir, int depth)
{
    DIR *d = depth < 16 ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (e->d_type != DT_DIR || e->d_name[0] == '.') continue;
        char *path = xasprintf("%s/%s", dir, e->d_name);
        remove_beneath(path, depth + 1);
        (void)rmdir(path);
        free(path);
    }
    if (d) (void)closedir(d);
}

bool cgroup_remove(const char *dir)
{
    remove_beneath(dir, 0);
    return rmdir(dir) == 0 || errno == ENOENT;
}

bool cgroup_is_of(const char *dir, const char *nonce)
{
    const char *slash = strrchr(dir, '/');
    return dir[0] == '/' && strstr(dir, "/../") == NULL && slash && strncmp(slash, "/ringmaster-", 12) == 0 && strcmp(slash + 12, nonce) == 0;
}
