#include "daemon/proc.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/error.h"

static ssize_t slurp(const char *path, char *buf, size_t max)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    size_t n = 0;
    for (ssize_t got; n < max && (got = read(fd, buf + n, max - n)) > 0; n += (size_t)got) { }
    (void)close(fd);
    return (ssize_t)n;
}

void proc_boot_id(char out[40])
{
    ssize_t n = slurp("/proc/sys/kernel/random/boot_id", out, 39);
    const char *told = getenv("RINGMASTER_BOOT_ID");        /* tests simulate a reboot */
    if (n < 0) n = 0;
    while (n > 0 && isspace((unsigned char)out[n - 1])) n--;
    out[n] = '\0';
    if (told) (void)snprintf(out, 40, "%s", told);
}

int64_t proc_start_time(int64_t pid)
{
    char path[64], buf[1024];
    if (pid <= 0) return 0;
    (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    ssize_t n = slurp(path, buf, sizeof buf - 1);
    if (n <= 0) return 0;
    buf[n] = '\0';
    const char *p = strrchr(buf, ')');          /* the name may hold spaces and brackets */
    if (p == NULL || p[1] == '\0' || p[2] == 'Z' || p[2] == 'X') return 0;
    for (int field = 2; field < 22 && p; field++) p = strchr(p + 1, ' ');
    return p ? strtoll(p + 1, NULL, 10) : 0;
}

int proc_of_attempt(const char *nonce, int64_t except, int sig, int64_t *first)
{
    enum { ENV_MAX = 1 << 18 };
    char want[128], path[300];
    int found = 0;
    DIR *dir = opendir("/proc");
    if (dir == NULL) return 0;
    char *env = xmalloc(ENV_MAX + 1);
    size_t want_len = (size_t)snprintf(want, sizeof want, "RINGMASTER_ATTEMPT=%s", nonce);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (!isdigit((unsigned char)e->d_name[0])) continue;
        long long pid = atoll(e->d_name);
        if (pid == except || pid == getpid()) continue;
        (void)snprintf(path, sizeof path, "/proc/%s/environ", e->d_name);
        ssize_t n = slurp(path, env, ENV_MAX);
        if (n <= 0) continue;
        env[n] = '\0';
        for (char *p = env; p < env + n; p += strlen(p) + 1) {
            if (strcmp(p, want) != 0 || strlen(p) != want_len) continue;
            if (found == 0 && first) *first = pid;
            found++;
            if (sig > 0) (void)kill((pid_t)pid, sig);
            break;
        }
    }
    free(env);
    (void)closedir(dir);
    return found;
}
