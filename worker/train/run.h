/* run.h - the life of a rank: what main() calls, and what step, checkpoint, evaluation and dump share. */
#ifndef RM_WORKER_TRAIN_RUN_H
#define RM_WORKER_TRAIN_RUN_H

#include "worker/data/loader.h"
#include "worker/link.h"
#include "worker/train/claim.h"
#include "worker/train/job.h"
#include "worker/train/metrics.h"
#include "worker/train/schedule.h"

/* What a checkpoint keeps beside weights and moments, and resume restores. */
struct progress {
    int64_t step;               /* optimizer steps done, skipped ones too */
    int64_t skipped;
    int64_t position;           /* micro-batches this data-parallel rank has consumed */
    double loss, epoch;         /* of the last step */
    double best_loss;           /* lowest eval_loss; NaN: none yet */
    int64_t best_step;          /* its checkpoint; 0: none */
};

struct run {
    const struct spec *spec;            /* of run_rank's caller, with the degrees that were chosen */
    struct spec decided;                /* what it points to; the strings are the caller's */
    struct job job;
    struct link *link;
    struct comm_world *world;
    void *device_memory, *host_memory;  /* what the arenas stand on */
    char wired[16];             /* how the GPUs are, as rank 0 read it */
    int64_t limit_bytes;        /* what the plan was held against; 0: none */
    int64_t allocated_bytes;    /* asked of device, host and transport, together */
    struct loader *loader;
    struct loader_info info;
    struct schedule schedule;
    struct progress progress;
    struct meter meter;
    int64_t steps;              /* of the whole job */
    int64_t per_epoch;          /* micro-batches of an epoch, this data-parallel rank */
    struct claim claim;         /* on output_dir; rank 0 alone */
    char *last_checkpoint;      /* NULL: none written yet */
    double eval_loss;           /* NaN: not evaluated in this step */
    int64_t tokens;             /* real tokens trained in this process, all ranks */
    char attention[200];        /* the kernels that run, for people */
    char gpu[64];               /* uuid of this rank's GPU; "" on the CPU or without NVML */
    uint64_t throttle;          /* why it was slowed down when last looked at */
    bool quiet;                 /* no lines for people on stderr */
};

/* Runs rank `rank` of `world` until the job is done. resume: NULL, or in place of the spec's resume_from_checkpoint.
 * Returns OK, E_STOPPED (asked to, checkpoint saved if that was wanted) or why it failed; the link has been told. */
int run_rank(const struct spec *spec, int rank, int world, int link_fd, const char *resume, struct error *err);
/* SIGTERM's handler may call it: the run saves a checkpoint at the next step border and leaves with E_STOPPED. */
void run_request_stop(void);
bool run_stop_requested(void);

/* Optimizer steps of the whole job, from the spec and the micro-batches of an epoch. */
int64_t run_steps(const struct spec *spec, int64_t per_epoch);

/* Sums v[0..n) over the group's ranks, n at most SCALARS_MAX + 2 * world, in f64, in rank order. */
int run_sum(struct run *r, struct comm *c, double *v, int n, struct error *err);
/* Any rank's failure becomes every rank's: returns rc where it failed, its code elsewhere (E_PEER when several did). Collective over all ranks. */
int run_agree(struct run *r, int rc, struct error *err);
/* A line for people, through the link and on rank 0's stderr. level: info, warning, error. */
void run_event(struct run *r, const char *level, const char *code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Appends record as one line to a file of output_dir. */
int run_append(const struct run *r, const char *name, const cJSON *record, struct error *err);

#endif
