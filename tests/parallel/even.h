/* even.h - how evenly a layout shares out attention: the slowest rank's work over the mean. */
#ifndef RM_TESTS_PARALLEL_EVEN_H
#define RM_TESTS_PARALLEL_EVEN_H

#include "worker/parallel/layout.h"

static inline double slowest_over_mean(const struct layout *l)
{
    double most = 0, sum = 0;
    for (int r = 0; r < l->R; r++) {
        double w = (double)layout_work(l, r, 0);
        sum += w;
        if (w > most) most = w;
    }
    return most / (sum / l->R);
}

#endif
