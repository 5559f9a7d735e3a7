/* links.h - how fast the ranks of this job reach each other, and how fast they compute attention: a short exchange before the first step.
 *
 * All ranks copy at once, as they will in training, and the slowest counts; every rank gets every rank's figure, so that all of them decide alike. */
#ifndef RM_WORKER_PARALLEL_LINKS_H
#define RM_WORKER_PARALLEL_LINKS_H

#include "worker/parallel/mesh.h"

/* Collective over all ranks; opens a communication world of its own and closes it again. CPU ranks; tens of milliseconds. */
int links_measure(struct link_speed *out, const char *transport, const struct kernel_ops *ops, struct link *link, int rank, int world, int deadline_ms, struct error *err);

#endif
