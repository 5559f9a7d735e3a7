/* job.h - all that one rank owns, laid out by one function: run on recording arenas it is the plan, with memory it is the rank. */
#ifndef RM_WORKER_TRAIN_JOB_H
#define RM_WORKER_TRAIN_JOB_H

#include "worker/model/model.h"
#include "worker/parallel/zero.h"
#include "worker/train/batch.h"
#include "worker/train/optimizer.h"

enum { SCALARS_MAX = 16 };

struct job {
    const struct spec *spec;
    const struct model_config *config;
    const struct kernel_ops *ops;
    struct mesh mesh;
    enum act_policy policy;
    struct stream *stream;              /* NULL when planning */
    struct arena arenas[MEM_PLACES];
    struct model *model;
    struct optimizer *opt;
    struct batch batch;
    double *scalars;                    /* device f64 [SCALARS_MAX + 2 * world]: small sums over ranks, and what each tells of itself */
    int64_t max_T, max_docs;
    int64_t transport_bytes;            /* what the transport takes for itself */
    int64_t library_bytes;              /* what the GPU's libraries take beside it: the other lines of job_libraries */
};

/* Memory of a GPU that no arena hands out. It counts against the device's limit like the rest. */
struct job_library {
    const char *name;
    enum mem_category category;
    int64_t bytes;
    const char *basis, *source;         /* "assumed" or "measured"; from where */
};
enum { JOB_LIBRARIES = 4 };
/* The lines of a rank; returns how many there are. None on the CPU; the transport's line is job.transport_bytes. */
int job_libraries(const struct kernel_ops *ops, int world, struct job_library out[JOB_LIBRARIES]);

/* What auto weighs transfers against, without an exchange: given, or as NVML says that the job's GPUs are wired, or assumed. */
struct link_speed job_link_speed(const struct spec *spec, const struct kernel_ops *ops);
const char *job_transport(const struct kernel_ops *ops);     /* "shm" | "nccl" */
/* Everything a rank takes, in order, from j->arenas. spec, config, ops, mesh, policy, stream and the arenas are set before. */
int job_layout(struct job *j, struct error *err);
/* Frees what job_layout made and the arenas' records; not the memory itself. */
void job_release(struct job *j);
int64_t job_peak(const struct job *j);                                      /* bytes, all places */
void job_by_category(const struct job *j, int64_t out[MEM_CATEGORIES]);     /* at each place's peak */

#endif
