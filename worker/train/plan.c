#include "worker/train/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "3.21 GiB", "17 MiB", "900 bytes" */
struct size_text { char v[24]; };
static struct size_text size_text(int64_t bytes)
{
    struct size_text t;
    if (bytes >= (int64_t)1 << 30) (void)snprintf(t.v, sizeof t.v, "%.2f GiB", (double)bytes / (1 << 30));
    else if (bytes >= 1 << 20) (void)snprintf(t.v, sizeof t.v, "%.1f MiB", (double)bytes / (1 << 20));
    else (void)snprintf(t.v, sizeof t.v, "%" PRId64 " bytes", bytes);
    return t;
}

int plan_device(const struct spec *spec, const struct kernel_ops **ops, struct error *err)
{
    struct error why;
    *ops = kernel_ops_cpu();
    if (strcmp(spec->device, "cpu") == 0) return OK;
    const struct kernel_ops *cuda = kernel_ops_cuda(&why);
    if (cuda) *ops = cuda;
    else if (strcmp(spec->device, "cuda") == 0) {
        *ops = NULL;
        return error_set(err, why.code, "%s", why.text);        /* it names the device itself */
    }
    return OK;
}

const struct kernel_ops *plan_device_elsewhere(const struct spec *spec)
{
    struct error none;
    return strcmp(spec->device, "cuda") == 0 && spec->memory_limit_bytes > 0 ? kernel_ops_cuda_module(&none) : NULL;
}

static int64_t limit_of(const struct spec *spec, const struct kernel_ops *ops)
{
    struct device_info info;
    if (spec->memory_limit_bytes > 0) return spec->memory_limit_bytes;
    if (ops->device_info(0, &info, NULL) != OK || info.total_bytes <= 0) return INT64_MAX;
    return ops == kernel_ops_cpu() ? info.total_bytes / 20 * 19 / spec->nproc_per_node : info.total_bytes / 20 * 19;
}

/* What counts against the limit: on the CPU all places are one memory; on a GPU host memory is not its own. */
static int64_t counted(const struct job *j)
{
    return j->arenas[PLACE_DEVICE].peak + j->arenas[PLACE_SHARED].peak + j->transport_bytes + j->library_bytes + (j->ops == kernel_ops_cpu() ? j->arenas[PLACE_HOST].peak : 0);
}

void plan_release(struct plan *p)
{
    for (int i = 0; i < p->world && p->ranks; i++) job_release(&p->ranks[i]);
    free(p->ranks);
    *p = (struct plan){ 0 };
}

/* All ranks under one policy. speed: job_link_speed's, which asks every GPU about every other and is no matter of the policy. */
static int lay_out(struct plan *p, const struct spec *spec, const struct model_config *config, const struct kernel_ops *ops, int world,
                   const struct link_speed *speed, enum act_policy policy, struct error *err)
{
    *p = (struct plan){ .policy = policy, .world = world, .limit_bytes = limit_of(spec, ops) };
    p->ranks = xcalloc((unsigned long)world, sizeof *p->ranks);
    int rc = OK;
    for (int i = 0; i < world && rc == OK; i++) {
        struct job *j = &p->ranks[i];
        *j = (struct job){ .spec = spec, .config = config, .ops = ops, .policy = policy };
        for (int k = 0; k < MEM_PLACES; k++) arena_init(&j->arenas[k], (enum mem_place)k, NULL, 0);
        rc = mesh_choose_at(&j->mesh, spec, config->H, config->Hkv, i, speed, err);
        if (rc == OK) rc = job_layout(j, err);
        if (rc != OK) break;
        int64_t peak = counted(j);
        if (peak > p->peak_bytes) p->peak_bytes = peak;
        if (j->arenas[PLACE_SHARED].peak > p->shared_bytes) p->shared_bytes = j->arenas[PLACE_SHARED].peak;
    }
    if (rc != OK) plan_release(p);
    return rc;
}

/* Whether auto may take it: the disk is only used when a folder was given for it. */
static bool may_choose(const struct spec *spec, enum act_policy k) { return k != ACT_OFFLOAD_DISK || spec->offload_dir != NULL; }

/* ", needs": what would fit, for a refusal. Appends to text. */
static void suggest(char *text, size_t cap, const struct spec *spec, const struct model_config *config, const struct kernel_ops *ops, int world,
                    const struct link_speed *speed)
{
    struct plan p;
    size_t n = strlen(text);
    bool any = false;
    for (int k = 0; k < ACT_POLICIES; k++) {
        if (lay_out(&p, spec, config, ops, world, speed, (enum act_policy)k, NULL) != OK) continue;
        if (p.peak_bytes <= p.limit_bytes) {
            n += (size_t)snprintf(text + n, n < cap ? cap - n : 0, "%s gradient_checkpointing %s (%s)", any ? "," : "; would fit:", act_policy_names[k],
                                  size_text(p.peak_bytes).v);
            any = true;
        }
        plan_release(&p);
    }
    struct spec more = *spec;
    int sp = spec->sequence_parallel_size > 0 ? (int)spec->sequence_parallel_size : (int)((spec->ulysses_size > 0 ? spec->ulysses_size : 1) * (spec->ring_size > 0 ? spec->ring_size : 1));
    more.ulysses_size = more.ring_size = 0;
    more.sequence_parallel_method = (char *)"auto";
    more.memory_limit_bytes = limit_of(spec, ops);
    for (int f = 2; f <= 8 && n + 100 < cap; f *= 2) {
        more.sequence_parallel_size = (int64_t)sp * f;
        more.nproc_per_node = spec->nproc_per_node * f;
        if (more.nproc_per_node > 64 || spec->max_length % more.sequence_parallel_size != 0) break;
        enum act_policy k = act_policy_by_name(spec->gradient_checkpointing);
        if (k == ACT_POLICIES) k = ACT_LAYER;
        struct link_speed other = job_link_speed(&more, ops);
        if (lay_out(&p, &more, config, ops, (int)more.nproc_per_node, &other, k, NULL) != OK) continue;
        if (p.peak_bytes <= p.limit_bytes) {
            n += (size_t)snprintf(text + n, n < cap ? cap - n : 0, "%s sequence_parallel_size %lld over %lld ranks with gradient_checkpointing %s (%s each)",
                                  any ? "," : "; would fit:", (long long)more.sequence_parallel_size, (long long)more.nproc_per_node, act_policy_names[k],
                                  size_text(p.peak_bytes).v);
            any = true;
            f = 8;
        }
        plan_release(&p);
    }
    if (!any) (void)snprintf(text + n, n < cap ? cap - n : 0, "; no policy of this size fits: lower max_length%s", strcmp(spec->tuner_type, "full") == 0 ? " or use tuner_type lora" : "");
}

int plan_make(struct plan *p, const struct spec *spec, const struct model_config *config, const struct kernel_ops *ops, int world, struct error *err)
{
    enum act_policy wanted = act_policy_by_name(spec->gradient_checkpointing);
    struct error first = { 0 };
    int64_t least = INT64_MAX, limit = limit_of(spec, ops);
    int rc = E_INTERNAL;
    if (wanted == ACT_POLICIES && strcmp(spec->gradient_checkpointing, "auto") != 0)
        return error_set(err, E_INVALID, "gradient_checkpointing \"%.40s\": expected auto, none, attention, layer, offload_host or offload_disk", spec->gradient_checkpointing);
    struct link_speed speed = job_link_speed(spec, ops);
    for (int k = 0; k < ACT_POLICIES; k++) {
        if (wanted != ACT_POLICIES ? k != (int)wanted : !may_choose(spec, (enum act_policy)k)) continue;
        struct error why = { 0 };
        rc = lay_out(p, spec, config, ops, world, &speed, (enum act_policy)k, &why);
        if (rc == OK && p->peak_bytes <= p->limit_bytes) return OK;
        if (rc == OK) {
            if (p->peak_bytes < least) least = p->peak_bytes;
            plan_release(p);
        } else if (first.code == OK) first = why;
    }
    *p = (struct plan){ 0 };
    if (least == INT64_MAX) {
        if (err) *err = first;
        return first.code;
    }
    char text[900];
    (void)snprintf(text, sizeof text, "the largest rank needs %s with gradient_checkpointing %s, the limit is %s (%s)", size_text(least).v,
                   spec->gradient_checkpointing, size_text(limit).v, spec->memory_limit_bytes > 0 ? "memory_limit_bytes" : "memory of the device");
    suggest(text, sizeof text, spec, config, ops, world, &speed);
    return error_set(err, E_LIMIT, "%s", text);
}
