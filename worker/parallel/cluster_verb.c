/* cluster_verb.c - `ringmaster-worker --cluster CLUSTER.json SPEC.json [--json]`: a job on 8 to 4,096 GPUs of another place, by formulas. */
#include <stdio.h>
#include <string.h>

#include "worker/model/config.h"
#include "worker/parallel/cluster.h"
#include "worker/verbs.h"

static struct workload workload_of(const struct spec *s, const struct model_config *m)
{
    struct workload w = { .L = m->L, .C = m->C, .F = m->F, .V = m->V, .H = m->H, .Hkv = m->Hkv, .D = m->D, .T = s->max_length * s->per_device_train_batch_size,
                          .tied = m->tied, .zero = (int)s->zero_stage, .offload_optimizer = s->zero_offload_optimizer,
                          .offload_grads = s->zero_offload_gradients, .grad_bytes = 4 };
    if (strcmp(s->tuner_type, "lora") == 0)     /* all-linear: seven adapters in a layer */
        w.n_lora = s->lora_rank * w.L * (3 * (w.C + w.F) + 2 * (w.C + w.H * w.D) + 2 * (w.C + w.Hkv * w.D));
    for (int k = 0; k < RECOMPUTES; k++)
        if (strcmp(s->gradient_checkpointing, recompute_names[k]) == 0) w.keep = (enum recompute)k;
    return w;
}

static void print_table(const struct cluster *c, const struct workload *w, const struct estimate *e, int n)
{
    (void)printf("%s: %lld tokens in a row, %.2f billion parameters, ZeRO %d\n\n%6s %5s %5s %5s  %-13s %9s %10s %8s %12s %6s\n", c->name, (long long)w->T, cluster_params(w) / 1e9,
                 w->zero, "GPUs", "dp", "U", "R", "recompute", "GB/GPU", "step s", "exposed", "tokens/s/GPU", "MFU");
    for (int i = 0; i < n; i++)
        (void)printf("%6d %5d %5d %5d  %-13s %9.1f %10.3g %7.1f%% %12.0f %5.1f%%%s\n", e[i].world, e[i].dp, e[i].U, e[i].R, recompute_names[e[i].keep], e[i].bytes / 1e9, e[i].step_s,
                     100 * e[i].exposed_s / e[i].step_s, e[i].tokens_per_s_gpu, 100 * e[i].mfu, e[i].fits ? "" : "  does not fit");
}

static cJSON *as_json(const struct cluster *c, const struct workload *w, const struct estimate *e, int n)
{
    cJSON *o = cJSON_CreateObject(), *list = cJSON_CreateArray();
    json_add_str(o, "cluster", c->name);
    json_add_int(o, "tokens", w->T);
    json_add_num(o, "parameters", cluster_params(w));
    for (int i = 0; i < n; i++) {
        cJSON *r = cJSON_CreateObject();
        json_add_int(r, "gpus", e[i].world);
        json_add_int(r, "dp", e[i].dp);
        json_add_int(r, "ulysses", e[i].U);
        json_add_int(r, "ring", e[i].R);
        json_add_str(r, "gradient_checkpointing", recompute_names[e[i].keep]);
        (void)cJSON_AddBoolToObject(r, "fits", e[i].fits);
        json_add_num(r, "bytes", e[i].bytes);
        json_add_num(r, "step_s", e[i].step_s);
        json_add_num(r, "exposed_share", e[i].exposed_s / e[i].step_s);
        json_add_num(r, "tokens_per_s_per_gpu", e[i].tokens_per_s_gpu);
        json_add_num(r, "mfu", e[i].mfu);
        (void)cJSON_AddItemToArray(list, r);
    }
    (void)cJSON_AddItemToObject(o, "rows", list);
    return o;
}

int verb_cluster(int argc, char **argv)
{
    bool json = argc == 4 && strcmp(argv[3], "--json") == 0;
    if (argc != 3 && !json) {
        (void)fputs("usage: ringmaster-worker --cluster CLUSTER.json SPEC.json [--json]\n", stderr);
        return 2;
    }
    struct error err = { 0 };
    struct problems p = { 0 };
    struct cluster c;
    struct spec spec;
    struct model_config config = { 0 };
    cJSON *file = NULL;
    int rc = json_parse_file(&file, argv[1], &json_limits_file, &err);
    if (rc == OK && (rc = cluster_read(&c, file, &err)) != OK) (void)error_prefix(&err, "%s", argv[1]);
    cJSON_Delete(file);
    if (rc == OK && spec_read(&spec, argv[2], &p) != OK) rc = error_set(&err, E_INVALID, "%s: %s: %s", argv[2], p.v[0].pointer, p.v[0].message);
    else if (rc == OK) {
        rc = model_config_read(&config, spec.model, &spec, &err);
        if (rc == OK) {
            struct workload w = workload_of(&spec, &config);
            struct estimate e[16];
            int n = 0;
            for (int world = 8; world <= 4096; world *= 2) e[n++] = cluster_best(&c, &w, world, strcmp(spec.gradient_checkpointing, "auto") == 0);
            if (json) json_print(as_json(&c, &w, e, n));
            else print_table(&c, &w, e, n);
        }
        model_config_release(&config);
        spec_release(&spec);
    }
    problems_release(&p);
    if (rc == OK) return 0;
    (void)fprintf(stderr, "ringmaster-worker: %s\n", err.text);
    return 2;
}
