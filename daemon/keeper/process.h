/* process.h - what /proc says of processes: identity, state, and everything that descends from us. */
#ifndef RM_KEEPER_PROCESS_H
#define RM_KEEPER_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct process_info { int pid, ppid; char state; int64_t start_time /* clock ticks after boot */, cpu_ticks, rss_bytes; };
bool process_info(int pid, struct process_info *out);
/* Boot id in out (36 characters and NUL); "" if unknown. */
void boot_id(char out[37]);
/* All living descendants of pid (zombies left out), at most max; returns how many. We are their subreaper, so nothing escapes by
 * leaving its session or losing its parent. */
int process_descendants(int pid, int *out, int max);
/* Reaps dead children of ours other than those in keep[0..n): the orphans we adopted. */
void process_reap(const int *keep, int n);
/* How often the kernel's OOM killer struck in our memory cgroup (v2 or v1); -1 if that cannot be known. */
int64_t oom_kill_count(void);

#endif
