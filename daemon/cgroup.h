/* cgroup.h - a control group (v2) for the ranks of one attempt, where making one is allowed: all that runs in it ends in one step, and empty is
 * what the kernel says, however fast it forks. Elsewhere the walk through /proc does both (keeper/process.h). */
#ifndef RM_DAEMON_CGROUP_H
#define RM_DAEMON_CGROUP_H

#include <stdbool.h>

/* Makes ringmaster-<nonce> beneath our own group; the path is the caller's. NULL where it may not: no cgroup v2, not writable, or the group is
 * somebody else's to arrange (a service or session that systemd has not delegated). */
char *cgroup_make(const char *nonce);
void cgroup_enter(const char *dir);                 /* the calling process; a failure leaves it where it is */
void cgroup_kill(const char *dir);                  /* SIGKILL to everything in it and beneath it, at once */
bool cgroup_populated(const char *dir);             /* false also when it is gone */
bool cgroup_remove(const char *dir);                /* true when it is gone */
/* True if dir is the name cgroup_make gives for this nonce: whatever else stands in a file is not touched. */
bool cgroup_is_of(const char *dir, const char *nonce);

#endif
