#include "worker/train/job.h"

#include <stdio.h>

#include "worker/nvml.h"

#include <string.h>

struct link_speed job_link_speed(const struct spec *spec, const struct kernel_ops *ops)
{
    enum { MOST = 64 };
    struct link_speed v = link_speed_assumed(spec, ops->name);
    int n = (int)spec->nproc_per_node;
    char uuid[MOST][64];
    struct device_info d;
    if (ops == kernel_ops_cpu() && spec->link_speed_gb_s <= 0 && spec->measure_links && spec->deterministic) v.how = "assumed: deterministic";
    if (ops == kernel_ops_cpu() || spec->link_speed_gb_s > 0 || !spec->measure_links || n < 2 || n > MOST || nvml_open(NULL) != OK) return v;
    for (int i = 0; i < n; i++) {
        if (ops->device_info(i, &d, NULL) != OK) return v;
        (void)snprintf(uuid[i], sizeof uuid[i], "%s", d.uuid);
    }
    const char *how;
    double Bps = nvml_link_Bps((const char (*)[64])uuid, n, &how);
    if (Bps > 0) v.link_Bps = Bps, v.how = how;
    return v;
}

const char *job_transport(const struct kernel_ops *ops) { return ops == kernel_ops_cpu() ? "shm" : "nccl"; }

int job_libraries(const struct kernel_ops *ops, int world, struct job_library out[JOB_LIBRARIES])
{
    if (ops == kernel_ops_cpu()) return 0;
    /* No GPU was at hand when these were written: they are what A100 and H100 machines are known to show, rounded up. */
    const struct job_library lines[JOB_LIBRARIES] = {
        { "CUDA context", MEM_WORKSPACE, (int64_t)512 << 20, "assumed", "an idle process's memory in nvidia-smi on A100 and H100 is 0.3 to 0.5 GiB with modules loaded lazily" },
        { "cuBLASLt workspace", MEM_WORKSPACE, (int64_t)64 << 20, "assumed",
          "its handle and the kernels it loads; the workspace of its products is ours, exact, and stands among the buffers" },
        { "kernel modules", MEM_WORKSPACE, (int64_t)32 << 20, "assumed", "at most the module's code for one architecture, loaded at first use" },
        { "NCCL buffers", MEM_COMMUNICATION, comm_overhead_bytes("nccl", world), "assumed",
          "16 channels of 5 MiB for each communicator of a rank (NCCL_BUFFSIZE is 4 MiB); exchange memory is ours and stands among the buffers" },
    };
    memcpy(out, lines, sizeof lines);
    return JOB_LIBRARIES;
}

int job_layout(struct job *j, struct error *err)
{
    struct arena *device = &j->arenas[PLACE_DEVICE], *shared = &j->arenas[PLACE_SHARED], *host = &j->arenas[PLACE_HOST];
    j->transport_bytes = comm_overhead_bytes(job_transport(j->ops), j->mesh.world);
    struct job_library lines[JOB_LIBRARIES];
    j->library_bytes = 0;
    for (int n = job_libraries(j->ops, j->mesh.world, lines), i = 0; i < n; i++)
        if (lines[i].category != MEM_COMMUNICATION) j->library_bytes += lines[i].bytes;
    batch_bounds(j->spec, j->mesh.R * j->mesh.U, &j->max_T, &j->max_docs);
    batch_init(&j->batch, j->spec->gradient_accumulation_steps, j->max_T, j->max_docs, host);

    j->scalars = arena_take(device, MEM_COMMUNICATION, DT_F64, SCALARS_MAX + 2 * j->mesh.world, 0, 0, 0, "scalars");
    struct model_options o = { .spec = j->spec, .config = j->config, .ops = j->ops, .mesh = &j->mesh, .policy = j->policy,
                               .max_T = j->max_T, .max_docs = j->max_docs };
    int rc = model_new(&j->model, &o, j->stream, device, shared, host, err);
    if (rc != OK) return rc;
    arena_settle(device);           /* the optimizer's state outlives the layers' scratch */
    const struct params *p = model_params(j->model);
    int64_t lo, hi;
    zero_shard(&j->mesh, (int)j->spec->zero_stage, p->n_flat, &lo, &hi);
    return optimizer_new(&j->opt, j->spec, j->ops, p, lo, hi, device, host, err);
}

void job_release(struct job *j)
{
    optimizer_free(j->opt);
    if (j->model) model_free(j->model);
    batch_release(&j->batch);
    for (int i = 0; i < MEM_PLACES; i++) arena_release_all(&j->arenas[i]);
    j->opt = NULL;
    j->model = NULL;
}

int64_t job_peak(const struct job *j)
{
    int64_t sum = j->transport_bytes + j->library_bytes;
    for (int i = 0; i < MEM_PLACES; i++) sum += j->arenas[i].peak;
    return sum;
}

void job_by_category(const struct job *j, int64_t out[MEM_CATEGORIES])
{
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        out[c] = 0;
        for (int i = 0; i < MEM_PLACES; i++) out[c] += j->arenas[i].peak_by_category[c];
    }
    out[MEM_COMMUNICATION] += j->transport_bytes;
    out[MEM_WORKSPACE] += j->library_bytes;
}
