#include "daemon/keeper/process.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/error.h"

/* /proc files have no size: read what there is, at most cap - 1 bytes. */
static bool slurp(const char *path, char *buf, size_t cap)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    size_t n = fread(buf, 1, cap - 1, f);
    buf[n] = '\0';
    (void)fclose(f);
    return n > 0;
}

bool process_info(int pid, struct process_info *out)
{
    char path[64], buf[2048];
    *out = (struct process_info){ .pid = pid };
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!slurp(path, buf, sizeof buf)) return false;
    char *p = strrchr(buf, ')');            /* the name may hold anything, spaces and brackets too */
    unsigned long long utime, stime, start;
    long rss;
    if (p == NULL || sscanf(p + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu %*u %ld",
                            &out->state, &out->ppid, &utime, &stime, &start, &rss) != 6) return false;
    out->cpu_ticks = (int64_t)(utime + stime);
    out->start_time = (int64_t)start;
    out->rss_bytes = rss * sysconf(_SC_PAGESIZE);
    return true;
}

void boot_id(char out[37])
{
    char buf[64] = "";
    (void)slurp("/proc/sys/kernel/random/boot_id", buf, sizeof buf);
    buf[strcspn(buf, "\n")] = '\0';
    (void)snprintf(out, 37, "%s", buf);
}

int process_descendants(int pid, int *out, int max)
{
    struct process_info *all = NULL;
    int n = 0, cap = 0, found = 0;
    DIR *d = opendir("/proc");
    if (d == NULL) return 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (!isdigit((unsigned char)e->d_name[0])) continue;
        if (n == cap) all = xrealloc(all, (unsigned long)(cap = cap ? cap * 2 : 256) * sizeof *all);
        if (process_info(atoi(e->d_name), &all[n])) n++;
    }
    (void)closedir(d);
    /* Spread from pid until nothing is added: no order of the list is assumed. */
    bool *mine = xcalloc((unsigned long)n + 1, sizeof *mine);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < n; i++) {
            bool child = all[i].ppid == pid;
            for (int k = 0; !child && !mine[i] && k < n; k++) child = mine[k] && all[k].pid == all[i].ppid;
            if (!child || mine[i]) continue;
            mine[i] = more = true;
            if (all[i].state != 'Z' && all[i].state != 'X' && found < max) out[found++] = all[i].pid;
        }
    }
    free(mine);
    free(all);
    return found;
}

void process_reap(const int *keep, int n)
{
    int self = (int)getpid();
    DIR *d = opendir("/proc");
    if (d == NULL) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        struct process_info p;
        if (!isdigit((unsigned char)e->d_name[0]) || !process_info(atoi(e->d_name), &p) || p.ppid != self || p.state != 'Z') continue;
        bool kept = false;
        for (int i = 0; i < n; i++) kept |= keep[i] == p.pid;
        if (!kept) (void)waitpid(p.pid, NULL, WNOHANG);
    }
    (void)closedir(d);
}

static int64_t counter(const char *path, const char *name)
{
    char buf[2048];
    if (!slurp(path, buf, sizeof buf)) return -1;
    size_t n = strlen(name);
    for (char *p = buf; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (strncmp(p, name, n) == 0 && p[n] == ' ') return atoll(p + n + 1);
    return -1;
}

int64_t oom_kill_count(void)
{
    char buf[4096], path[5000];
    if (!slurp("/proc/self/cgroup", buf, sizeof buf)) return -1;
    for (char *line = buf; *line;) {
        size_t len = strcspn(line, "\n");
        char *at = memchr(line, ':', len), *name = at ? at + 1 : line, *dir = at ? memchr(name, ':', len - (size_t)(name - line)) : NULL;
        char *next = line + len + (line[len] == '\n');
        if (dir) {
            *dir++ = '\0';
            int n = (int)(line + len - dir);
            int64_t v = -1;
            if (strcmp(name, "memory") == 0) {
                (void)snprintf(path, sizeof path, "/sys/fs/cgroup/memory%.*s/memory.oom_control", n, dir);
                v = counter(path, "oom_kill");
            } else if (*name == '\0') {
                (void)snprintf(path, sizeof path, "/sys/fs/cgroup%.*s/memory.events", n, dir);
                v = counter(path, "oom_kill");
            }
            if (v >= 0) return v;
        }
        line = next;
    }
    return -1;
}
