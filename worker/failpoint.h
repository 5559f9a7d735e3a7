/* failpoint.h - a place where tests strike a rank from outside: it says that it has come there, and waits to be struck.
 *
 * RM_FAILPOINT names a file of one line, "RANK STEP PHASE". The rank that comes to that phase of that step renames the file to
 * FILE.reached and stands still until that is removed; whoever watches the file sends the signal. Without the variable every call is one comparison.
 * Phases are those of link_step, and forward, backward (in the middle of the layers) and exchange (before a rank enters a collective). */
#ifndef RM_WORKER_FAILPOINT_H
#define RM_WORKER_FAILPOINT_H

#include <stdint.h>

/* Where this rank is from now on; also a place to be struck at. From one thread only. */
void failpoint_step(int rank, int64_t step, const char *phase);
void failpoint(const char *phase);

#endif
