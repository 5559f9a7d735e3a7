/* clock.h - the one clock for how long things take. */
#ifndef RM_API_CLOCK_H
#define RM_API_CLOCK_H

#include <time.h>

/* Seconds since some moment, the same for all processes of this machine; never set back. */
static inline double monotonic_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
