/* run.c - the life of a rank: data, mesh, memory from the plan, model, steps, done. */
#include "worker/train/run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "api/message.h"
#include "worker/nvml.h"
#include "worker/parallel/links.h"
#include "worker/parallel/volume.h"
#include "worker/train/checkpoint.h"
#include "worker/train/evaluate.h"
#include "worker/train/plan.h"
#include "worker/train/sample.h"
#include "worker/train/step.h"

static volatile sig_atomic_t stop_requested;
void run_request_stop(void) { stop_requested = 1; }
bool run_stop_requested(void) { return stop_requested != 0; }

int64_t run_steps(const struct spec *spec, int64_t per_epoch)
{
    if (spec->max_steps > 0) return spec->max_steps;
    int64_t per = (per_epoch + spec->gradient_accumulation_steps - 1) / spec->gradient_accumulation_steps;
    double steps = ceil((double)per * spec->num_train_epochs);
    return steps < 1 ? 1 : (int64_t)steps;
}

int run_sum(struct run *r, struct comm *c, double *v, int n, struct error *err)
{
    struct job *j = &r->job;
    if (comm_size(c) == 1) return OK;
    int rc = j->ops->copy(j->stream, j->scalars, v, (size_t)n * sizeof *v);
    if (rc == OK) rc = comm_all_reduce(c, j->stream, DT_F64, j->scalars, n, err);
    else return error_set(err, (enum status)rc, "sum over ranks: %s", j->ops->error(j->stream));
    if (rc == OK) rc = j->ops->stream_wait(j->stream, err);     /* a copy into memory that is not pinned waits too, but watches no peer */
    if (rc != OK) return rc;
    rc = j->ops->copy(j->stream, v, j->scalars, (size_t)n * sizeof *v);
    if (rc != OK) return error_set(err, (enum status)rc, "sum over ranks: %s", j->ops->error(j->stream));
    return j->ops->stream_wait(j->stream, err);
}

int run_agree(struct run *r, int rc, struct error *err)
{
    double v[2] = { rc != OK, rc };         /* how many failed, and the sum of their codes */
    int sum = run_sum(r, r->job.mesh.all, v, 2, rc == OK ? err : NULL);
    if (rc != OK) return rc;
    if (sum != OK || v[0] <= 0) return sum;
    enum status code = v[0] < 2 ? (enum status)v[1] : E_PEER;
    return error_set(err, code, "another rank failed at the same point: %s", status_name(code));
}

void run_event(struct run *r, const char *level, const char *code, const char *fmt, ...)
{
    char text[1200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "t", "event");
    json_add_str(o, "level", level);
    json_add_str(o, "code", code);
    json_add_str(o, "text", text);
    link_send(r->link, o);
    if (!r->quiet) (void)fprintf(stderr, "%s: %s\n", level, text);
}

/* --- start --- */

static void set_threads(const struct spec *spec, int world)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int here = world < spec->nproc_per_node ? world : (int)spec->nproc_per_node;
    int n = spec->threads_per_rank > 0 ? (int)spec->threads_per_rank : cores / here;
    kernel_cpu_threads(n > 0 ? n : 1);
}

/* Before any rank reads data: a job that has no place to write to ends here. */
static int take_output(struct run *r, const char *resume, struct error *err)
{
    const char *out = r->spec->output_dir;
    int rc = make_dirs(out, err);
    if (rc == OK) rc = claim_take(&r->claim, out, resume, err);
    if (rc != OK) return rc;
    if (r->claim.locked) return checkpoint_sweep(out, err);
    run_event(r, "warning", "lock", "the file system of %s has no locks: a second job that writes there will not be noticed", out);
    return OK;
}

/* Rank 0 decides what all must do alike, the policy and the shared bytes, and tells the others. */
static int agree_on_plan(struct run *r, const char *resume, int64_t *shared_bytes, struct error *err)
{
    struct job *j = &r->job;
    char *value = NULL;
    int rc = OK, policy = 0;
    if (j->mesh.rank == 0) {
        struct plan plan;
        rc = plan_make(&plan, r->spec, j->config, j->ops, j->mesh.world, err);
        int claimed = rc == OK ? take_output(r, resume, err) : rc;
        if (rc == OK && claimed != OK) plan_release(&plan);
        rc = claimed;
        if (rc == OK) {
            j->policy = plan.policy;
            *shared_bytes = plan.shared_bytes;
            r->limit_bytes = plan.limit_bytes < INT64_MAX ? plan.limit_bytes : 0;
            value = xasprintf("%d %" PRId64 " %" PRId64, (int)plan.policy, plan.shared_bytes, r->limit_bytes);
            rc = link_put(r->link, "plan", value, err);
            plan_release(&plan);
        }
    } else {
        rc = link_get(r->link, "plan", &value, (int)r->spec->stall_timeout_ms, err);
        if (rc == OK && sscanf(value, "%d %" SCNd64 " %" SCNd64, &policy, shared_bytes, &r->limit_bytes) != 3) rc = error_set(err, E_INTERNAL, "plan from rank 0: \"%s\"", value);
        j->policy = (enum act_policy)policy;
    }
    free(value);
    return rc;
}

static int take_memory(struct run *r, int64_t shared_bytes, struct error *err)
{
    struct job *j = &r->job, dry = { .spec = j->spec, .config = j->config, .ops = j->ops, .mesh = j->mesh, .policy = j->policy };
    for (int i = 0; i < MEM_PLACES; i++) arena_init(&dry.arenas[i], (enum mem_place)i, NULL, 0);
    int rc = job_layout(&dry, err);
    int64_t bytes[MEM_PLACES];
    for (int i = 0; i < MEM_PLACES; i++) bytes[i] = dry.arenas[i].peak;
    int64_t library_bytes = dry.library_bytes;
    job_release(&dry);
    if (rc != OK) return rc;
    if (shared_bytes < bytes[PLACE_SHARED]) shared_bytes = bytes[PLACE_SHARED];

    rc = comm_open(&r->world, "job", job_transport(j->ops), j->ops, r->link, j->mesh.rank, j->mesh.world, shared_bytes,
                   (int)r->spec->stall_timeout_ms, err);
    if (rc == OK) rc = mesh_connect(&j->mesh, r->world, err);
    if (rc == OK && bytes[PLACE_DEVICE] > 0) rc = j->ops->mem_alloc(&r->device_memory, (size_t)bytes[PLACE_DEVICE], err);
    if (rc == OK && bytes[PLACE_HOST] > 0) rc = j->ops->host_alloc(&r->host_memory, (size_t)bytes[PLACE_HOST], err);
    if (rc != OK) return rc;
    void *shared = comm_memory(r->world);
    r->allocated_bytes = bytes[PLACE_DEVICE] + bytes[PLACE_HOST] + shared_bytes + comm_overhead_bytes(job_transport(j->ops), j->mesh.world) + library_bytes;
    /* an arena without memory would only record: one of no bytes still gets an address */
    arena_init(&j->arenas[PLACE_DEVICE], PLACE_DEVICE, r->device_memory ? r->device_memory : r, bytes[PLACE_DEVICE]);
    arena_init(&j->arenas[PLACE_HOST], PLACE_HOST, r->host_memory ? r->host_memory : r, bytes[PLACE_HOST]);
    arena_init(&j->arenas[PLACE_SHARED], PLACE_SHARED, shared ? shared : r, shared_bytes);
    return job_layout(j, err);
}

static int load_weights(struct run *r, const char *resume, struct error *err)
{
    struct job *j = &r->job;
    int rc;
    link_step(r->link, 0, "load");
    if (strcmp(r->spec->init, "random") == 0) rc = model_init_random(j->model, (uint64_t)r->spec->seed, err);
    else rc = model_load(j->model, r->spec->model, err);
    if (rc == OK) rc = optimizer_start(j->opt, j->stream, err);
    rc = run_agree(r, rc, err);
    if (rc == OK && resume) rc = checkpoint_load(r, resume, err);
    if (rc == OK) rc = model_weights_changed(j->model, err);
    return rc;
}

static void say_ready(struct run *r)
{
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "t", "ready");
    json_add_int(o, "peak_bytes", job_peak(&r->job));
    json_add_int(o, "allocated_bytes", r->allocated_bytes);
    json_add_str(o, "device", r->job.ops->name);
    json_add_int(o, "steps", r->steps);
    json_add_int(o, "step", r->progress.step);
    json_add_str(o, "policy", act_policy_names[r->job.policy]);
    json_add_str(o, "parallel", r->job.mesh.why);
    json_add_int(o, "ulysses", r->job.mesh.U);
    json_add_int(o, "ring", r->job.mesh.R);
    json_add_str(o, "attention", r->attention);
    link_send(r->link, o);
    if (r->job.mesh.rank == 0) run_event(r, "info", "attention", "attention kernels on %s (attn_impl %s): %s", r->job.ops->name, r->spec->attn_impl, r->attention);
}

static void show_progress(void *arg, const char *what, int64_t done, int64_t total)
{
    struct run *r = arg;
    link_step(r->link, 0, "data");
    if (r->job.mesh.rank == 0 && !r->quiet && isatty(STDERR_FILENO))
        (void)fprintf(stderr, "\r%s %" PRId64 "/%" PRId64 "%s", what, done, total, done >= total ? "\n" : "");
}

/* Rank 0 reads how the GPUs are wired; all go by what it read. */
static int agree_on_speed(struct run *r, int rank, struct link_speed *speed, struct error *err)
{
    char *value = NULL;
    int rc = OK;
    if (rank == 0) {
        value = xasprintf("%.17g %.17g %s", speed->link_Bps, speed->attn_flops, speed->how);
        rc = link_put(r->link, "speed", value, err);
    } else {
        rc = link_get(r->link, "speed", &value, (int)r->spec->stall_timeout_ms, err);
        if (rc == OK && sscanf(value, "%lf %lf %15s", &speed->link_Bps, &speed->attn_flops, r->wired) != 3) rc = error_set(err, E_INTERNAL, "speed from rank 0: \"%s\"", value);
        speed->how = r->wired;
    }
    free(value);
    return rc;
}

/* auto's degrees, the same on all ranks, into the spec and the mesh: as a checkpoint had them, else by the speed of the links. */
static int choose_degrees(struct run *r, int rank, int world, const char *resume, const struct model_config *config, struct error *err)
{
    struct job *j = &r->job;
    struct spec *spec = &r->decided;
    struct mesh assumed, chosen;
    struct link_speed speed = job_link_speed(spec, j->ops);
    bool open = mesh_undecided(spec, config->H, config->Hkv);
    int U = 0, R = 0, rc = mesh_choose_at(&assumed, spec, config->H, config->Hkv, rank, &speed, err);
    if (rc == OK && assumed.world != world)
        return error_set(err, E_INVALID, "--world %d, but the spec asks for %d ranks (nproc_per_node)", world, assumed.world);
    j->mesh = chosen = assumed;
    if (rc != OK || !open) return rc;
    if (resume) checkpoint_degrees(resume, &U, &R);
    if (U * R == assumed.U * assumed.R && volume_splits(config->H, config->Hkv, U)) {
        spec->ulysses_size = U;
        spec->ring_size = R;
        rc = mesh_choose(&chosen, spec, config->H, config->Hkv, rank, err);
        (void)snprintf(chosen.why, sizeof chosen.why, "auto: ulysses x %d, ring x %d, as in the checkpoint", U, R);
    } else {
        bool measure = spec->measure_links && !spec->deterministic && spec->link_speed_gb_s <= 0 && j->ops == kernel_ops_cpu();     /* no two measurements are equal */
        if (measure) rc = links_measure(&speed, job_transport(j->ops), j->ops, r->link, rank, world, (int)spec->stall_timeout_ms, err);
        else if (j->ops != kernel_ops_cpu()) rc = agree_on_speed(r, rank, &speed, err);
        if (rc == OK) rc = mesh_choose_at(&chosen, spec, config->H, config->Hkv, rank, &speed, err);
        spec->ulysses_size = chosen.U;
        spec->ring_size = chosen.R;
        if (rc == OK && rank == 0 && measure)
            run_event(r, "info", "parallel", "%s%s", chosen.why, chosen.U == assumed.U ? "" : "; the plan had assumed another");
    }
    j->mesh = chosen;
    return rc;
}

/* Rank 0 says which device each rank takes: what NVML says to one process it may refuse another, and no two ranks may take the same. */
static int agree_on_devices(struct run *r, int rank, bool known, int n, const char uuid[][64], int *order, struct error *err)
{
    char *value = NULL, *at;
    uint64_t seen = 0;
    int rc;
    if (rank != 0) rc = link_get(r->link, "devices", &value, (int)r->spec->stall_timeout_ms, err);
    else {
        for (int i = 0; i < n; i++) order[i] = i;
        if (known) nvml_order(uuid, n, order);
        value = xstrdup("");
        for (int i = 0; i < n; i++) {
            char *longer = xasprintf("%s%d ", value, order[i]);
            free(value);
            value = longer;
        }
        rc = link_put(r->link, "devices", value, err);
    }
    at = value;
    for (int i = 0; i < n && rc == OK; i++) {
        order[i] = (int)strtol(at, &at, 10);
        if (*at != ' ' || order[i] < 0 || order[i] >= n || seen >> order[i] & 1) rc = error_set(err, E_INTERNAL, "devices from rank 0: \"%s\"", value);
        else seen |= UINT64_C(1) << order[i];
    }
    free(value);
    return rc;
}

/* A rank's device: the one of its number on this machine, in the order in which neighbours are wired most closely. */
static int open_device(struct run *r, int rank, struct error *err)
{
    enum { MOST = 64 };
    const struct kernel_ops *ops = r->job.ops;
    int n = (int)r->spec->nproc_per_node, at = rank % n, order[MOST];
    struct device_info d;
    if (ops == kernel_ops_cpu()) return ops->device_open(0, err);
    if (n <= MOST) {
        char uuid[MOST][64];
        bool all = nvml_open(NULL) == OK;
        for (int i = 0; i < n && all; i++)
            if ((all = ops->device_info(i, &d, NULL) == OK)) (void)snprintf(uuid[i], sizeof uuid[i], "%s", d.uuid);
        int rc = agree_on_devices(r, rank, all, n, (const char (*)[64])uuid, order, err);
        if (rc != OK) return rc;
        if (all) (void)snprintf(r->gpu, sizeof r->gpu, "%s", uuid[order[at]]);
        at = order[at];
    }
    return ops->device_open(at, err);
}

/* The GPU's own figures, into the record; people are told when it begins to be slowed down by heat or power. */
static void look_at_gpu(struct run *r, cJSON *o)
{
    enum { IDLE = 1, BY_REQUEST = 2 };
    struct gpu_reading now;
    char text[200];
    if (*r->gpu == '\0' || !nvml_read(r->gpu, &now)) return;
    nvml_add(o, "gpu_", &now);
    uint64_t slow = now.throttle & ~(uint64_t)(IDLE | BY_REQUEST), before = r->throttle;
    r->throttle |= slow;
    if (slow & ~before) run_event(r, "warning", "throttled", "the GPU of rank %d is slowed down: %s", r->job.mesh.rank, nvml_throttle_text(slow, text, sizeof text));
}

static int start(struct run *r, int rank, int world, const char *resume, struct model_config *config, struct error *err)
{
    struct job *j = &r->job;
    int64_t shared_bytes = 0, max_T, max_docs;
    link_step(r->link, 0, "start");
    int rc = plan_device(r->spec, &j->ops, err);
    if (rc == OK) rc = open_device(r, rank, err);
    if (rc == OK) rc = model_config_read(config, r->spec->model, r->spec, err);
    if (rc == OK) rc = choose_degrees(r, rank, world, resume, config, err);
    if (rc != OK) return rc;
    int sp = j->mesh.R * j->mesh.U;
    rc = agree_on_plan(r, resume, &shared_bytes, err);
    if (rc == OK) rc = loader_open(&r->loader, r->spec, j->mesh.dp_rank, j->mesh.dp, sp, show_progress, r, err);
    if (rc != OK) return rc;
    loader_info(r->loader, &r->info);
    if (r->spec->eval_steps > 0 && r->info.val_rows == 0)
        return error_set(err, E_INVALID, "eval_steps %" PRId64 " needs something to evaluate: give val_dataset or split_dataset_ratio", r->spec->eval_steps);
    loader_bounds(r->loader, &max_T, &max_docs);
    r->per_epoch = r->info.micro_per_epoch;
    r->steps = run_steps(r->spec, r->per_epoch);
    schedule_init(&r->schedule, r->spec, r->steps);
    rc = r->spec->offload_dir ? make_dirs(r->spec->offload_dir, err) : OK;
    if (rc == OK) rc = j->ops->stream_new(&j->stream, r->spec->deterministic, err);
    if (rc == OK) rc = take_memory(r, shared_bytes, err);
    if (rc != OK) return rc;
    if (max_T > j->max_T || max_docs > j->max_docs)
        return error_set(err, E_INTERNAL, "the loader's rows may have %" PRId64 " tokens in %" PRId64 " documents, the plan counted on %" PRId64 " in %" PRId64,
                         max_T, max_docs, j->max_T, j->max_docs);
    (void)snprintf(r->attention, sizeof r->attention, "%s", model_attention(j->model));
    return load_weights(r, resume, err);
}

/* --- steps --- */

int run_append(const struct run *r, const char *name, const cJSON *record, struct error *err)
{
    char *path = xasprintf("%s/%s", r->spec->output_dir, name), *text = json_line(record);
    size_t n = strlen(text);
    text[n] = '\n';         /* in place of the NUL: one write, so that lines are whole */
    int rc = OK, fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) rc = error_set(err, status_of_errno(errno), "%s: %s", path, strerror(errno));
    else {
        rc = write_all(fd, text, n + 1, err);
        (void)close(fd);
    }
    free(text);
    free(path);
    return rc;
}

static void report(struct run *r, const struct step_result *s)
{
    struct error err;
    cJSON *o = meter_record(&r->meter, &r->job, r->world, s, r->steps - s->step);
    json_add_int(o, "allocated_bytes", r->allocated_bytes);
    if (r->limit_bytes > 0) json_add_int(o, "limit_bytes", r->limit_bytes);
    json_add_int(o, "skipped_steps", r->progress.skipped);
    if (r->job.opt->galore) json_add_int(o, "galore_failures", r->job.opt->galore->failures);
    if (!isnan(r->eval_loss)) {
        json_add_num(o, "eval_loss", r->eval_loss);
        json_add_num(o, "eval_perplexity", exp(r->eval_loss));
    }
    bool logged = s->step % r->spec->logging_steps == 0 || s->step == r->steps || !isnan(r->eval_loss);
    if (logged) look_at_gpu(r, o);
    if (r->job.mesh.rank == 0 && logged) {
        if (run_append(r, "logging.jsonl", o, &err) != OK) run_event(r, "warning", "log", "%s", err.text);      /* the run is worth more than its log */
        if (!r->quiet)
            (void)fprintf(stderr, "step %" PRId64 "/%" PRId64 "  loss %.6f  grad %.4f  lr %.3g  %.0f tokens/s  comm %.1f%%\n", s->step, r->steps, s->loss, s->grad_norm, s->lr,
                          json_num(o, "tokens_per_s", 0), 100 * json_num(o, "comm_share", 0));
    }
    if (s->skipped && r->job.mesh.rank == 0)
        run_event(r, "warning", "skipped_step", "step %" PRId64 ": gradients are not finite; the step was skipped (%" PRId64 " so far)", s->step, r->progress.skipped);
    if (logged) link_send(r->link, o);
    else cJSON_Delete(o);
}

static int save(struct run *r, struct error *err)
{
    double from = monotonic_s();
    link_step(r->link, r->progress.step, "checkpoint");
    int rc = checkpoint_save(r, err);
    r->meter.phase_s[PHASE_CHECKPOINT] += monotonic_s() - from;
    if (rc == OK && r->job.mesh.rank == 0) {
        cJSON *o = cJSON_CreateObject();
        json_add_str(o, "t", "checkpoint");
        json_add_int(o, "step", r->progress.step);
        json_add_str(o, "path", r->last_checkpoint);
        link_send(r->link, o);
    }
    return rc;
}

/* The best is one that can be loaded: only steps about to be saved count. */
static void note_best(struct run *r)
{
    struct progress *p = &r->progress;
    if (isnan(r->eval_loss) || (!isnan(p->best_loss) && r->eval_loss >= p->best_loss)) return;
    p->best_loss = r->eval_loss;
    p->best_step = p->step;
}

/* What people look at between steps. A sample that fails is told and does no harm. */
static int look(struct run *r, struct error *err)
{
    struct error why;
    int rc = evaluate(r, &r->eval_loss, err);
    if (rc == OK && sample_log(r, &why) != OK) run_event(r, "warning", "sample", "%s", why.text);
    return rc;
}

/* Saves after a step. Unless the run ends with it, a failure is told and the run goes on: a disk that is full now may have room next time. */
static int save_due(struct run *r, bool ends, bool *saved, struct error *err)
{
    const struct progress before = r->progress;
    struct error why;
    note_best(r);
    int rc = save(r, &why);
    *saved = rc == OK;
    if (rc == OK) return OK;
    r->progress = before;
    if (ends || rc == E_PEER) {
        *err = why;
        return rc;
    }
    if (r->job.mesh.rank == 0) run_event(r, "error", "checkpoint", "%s", why.text);
    return OK;
}

/* After the first step, when every library has taken what it takes: what the plan assumed against what the device says. */
static void tell_libraries(struct run *r)
{
    struct job *j = &r->job;
    struct device_info d;
    if (j->ops == kernel_ops_cpu() || j->mesh.rank != 0 || j->ops->device_info(0, &d, NULL) != OK) return;
    int64_t ours = j->arenas[PLACE_DEVICE].capacity + j->arenas[PLACE_SHARED].capacity, rest = d.total_bytes - d.free_bytes - ours;
    run_event(r, "info", "libraries", "the libraries and whoever else is on the device hold %" PRId64 " MiB beside the plan's buffers; the plan assumed %" PRId64 " MiB", rest >> 20,
              (j->transport_bytes + j->library_bytes) >> 20);
}

static int steps(struct run *r, struct error *err)
{
    const struct spec *spec = r->spec;
    int64_t first = r->progress.step + 1;
    while (r->progress.step < r->steps) {
        struct step_result s;
        bool saved = false;
        int rc = step_run(r, &s, err);
        if (rc != OK) return rc;
        bool last = s.step == r->steps;
        if (s.step == first) tell_libraries(r);
        r->eval_loss = NAN;
        if (spec->eval_steps > 0 && (s.step % spec->eval_steps == 0 || last)) rc = look(r, err);
        bool due = last || (s.stop && !s.stop_now) || s.checkpoint || (spec->save_steps > 0 && s.step % spec->save_steps == 0);
        if (rc == OK && due) rc = save_due(r, last || s.stop, &saved, err);
        report(r, &s);
        if (rc != OK) return rc;
        if (s.stop && !last) return error_set(err, E_STOPPED, "stopped on request after step %" PRId64 "%s", s.step, saved ? ", checkpoint saved" : "");
    }
    return OK;
}

static void say_done(struct run *r, bool idle, double seconds, int64_t tokens)
{
    struct comm_count count[COMM_KINDS];
    int64_t sent = 0;
    double exposed = 0;
    comm_counts(r->world, count);
    for (int i = 0; i < COMM_KINDS; i++) {
        sent += count[i].bytes;
        exposed += count[i].exposed_s;
    }
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "t", "done");
    json_add_int(o, "step", r->progress.step);
    json_add_num(o, "loss", r->progress.loss);
    json_add_num(o, "seconds", seconds);
    json_add_num(o, "tokens_per_s", seconds > 0 ? (double)tokens / seconds : 0);
    json_add_int(o, "peak_bytes", job_peak(&r->job));
    json_add_int(o, "sent_bytes", sent);
    json_add_num(o, "comm_share", seconds > 0 ? exposed / seconds : 0);
    json_add_int(o, "skipped_steps", r->progress.skipped);
    json_add_str(o, "checkpoint", r->last_checkpoint);
    json_add_str(o, "output_dir", r->spec->output_dir);
    if (idle) {
        char text[120];
        (void)snprintf(text, sizeof text, "nothing left to do: the checkpoint is at step %" PRId64 " of %" PRId64, r->progress.step, r->steps);
        json_add_str(o, "detail", text);
        if (!r->quiet) (void)fprintf(stderr, "%s\n", text);
    }
    link_send(r->link, o);
}

static void say_error(struct run *r, const struct error *err)
{
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "t", "error");
    json_add_str(o, "code", status_name(err->code));
    json_add_str(o, "text", err->text);
    link_send(r->link, o);
}

int run_rank(const struct spec *spec, int rank, int world, int link_fd, const char *resume, struct error *err)
{
    struct run r = { .spec = spec, .decided = *spec, .eval_loss = NAN, .quiet = rank != 0, .claim = { .fd = -1 } };
    struct model_config config = { 0 };
    r.progress.best_loss = NAN;
    r.spec = r.job.spec = spec = &r.decided;
    r.job.config = &config;
    if (resume == NULL) resume = spec->resume_from_checkpoint;
    set_threads(spec, world);
    int rc = link_open(&r.link, link_fd, rank, world, err);
    if (rc != OK) return rc;
    rc = start(&r, rank, world, resume, &config, err);
    if (rc == OK) {
        say_ready(&r);
        double from = monotonic_s();
        bool idle = r.progress.step >= r.steps;
        rc = steps(&r, err);
        if (rc == OK) say_done(&r, idle, monotonic_s() - from, r.tokens);
    }
    if (rc != OK) say_error(&r, err);

    int64_t device_bytes = r.job.arenas[PLACE_DEVICE].capacity, host_bytes = r.job.arenas[PLACE_HOST].capacity;
    job_release(&r.job);
    if (r.world) comm_close(r.world);
    if (r.device_memory) r.job.ops->mem_free(r.device_memory, (size_t)device_bytes);
    if (r.host_memory) r.job.ops->host_free(r.host_memory, (size_t)host_bytes);
    if (r.job.stream) r.job.ops->stream_free(r.job.stream);
    if (r.loader) loader_close(r.loader);
    model_config_release(&config);
    claim_release(&r.claim);
    free(r.last_checkpoint);
    link_close(r.link);
    return rc;
}
