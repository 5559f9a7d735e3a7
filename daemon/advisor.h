/* advisor.h - watches the figures of a run and says, once per attempt and cause, what is wrong and what would help. */
#ifndef RM_DAEMON_ADVISOR_H
#define RM_DAEMON_ADVISOR_H

#include "api/spec.h"

enum { ADVICE_STEPS = 20, ADVICE_RANKS = 256 };
enum advice { ADVICE_COMM, ADVICE_SKEW, ADVICE_MEMORY, ADVICE_LOSS, ADVICE_THROUGHPUT, ADVICES };

struct advisor {
    int ranks;
    int comm_steps;                     /* in a row above the limit, rank 0 */
    int skew_steps;
    double busy_s[ADVICE_RANKS];        /* step time without waiting for others, smoothed */
    double rate[ADVICE_STEPS], best;    /* tokens/s of the last steps, best mean so far */
    int n_rate;
    bool said[ADVICES];
};

/* Looks at one metrics record of a rank. Returns the code of a new advice with its text, or NULL. Deterministic: no clock. */
const char *advisor_step(struct advisor *a, const struct spec *s, int rank, const cJSON *metrics, char text[600]);

#endif
