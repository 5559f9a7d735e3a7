/* proc.h - who runs on this machine: identities that cannot be mistaken for another process's. */
#ifndef RM_DAEMON_PROC_H
#define RM_DAEMON_PROC_H

#include <stdbool.h>
#include <stdint.h>

void proc_boot_id(char out[40]);
/* Start time in clock ticks since boot (/proc/<pid>/stat field 22); 0 if there is no such process or it is a zombie. */
int64_t proc_start_time(int64_t pid);
/* Processes whose environment holds RINGMASTER_ATTEMPT=<nonce>, `except` not counted; sig > 0 is sent to each. *first gets one pid. */
int proc_of_attempt(const char *nonce, int64_t except, int sig, int64_t *first);

#endif
