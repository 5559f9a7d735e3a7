#include "tests/model/rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t rig_tile_rows;
const struct kernel_ops *rig_ops;

const char *fixture(const char *name)
{
    static char buf[4][1000];
    static int k;
    const char *root = getenv("RM_FIXTURES");
    k = (k + 1) % 4;
    (void)snprintf(buf[k], sizeof buf[k], "%s/%s", root ? root : "tests/model/fixtures", name);
    return buf[k];
}

static int lay_out(struct rig *r, const struct model_options *o, struct error *err)
{
    return model_new(&r->m, o, r->s, &r->arenas[PLACE_DEVICE], &r->arenas[PLACE_SHARED], &r->arenas[PLACE_HOST], err);
}

int rig_open(struct rig *r, const char *dir, const char *more, enum act_policy policy, int64_t max_T, int64_t max_docs, struct error *err)
{
    return rig_open_rank(r, NULL, 0, dir, more, policy, max_T, max_docs, err);
}

int rig_open_rank(struct rig *r, struct comm_world *w, int rank, const char *dir, const char *more, enum act_policy policy, int64_t max_T, int64_t max_docs, struct error *err)
{
    char text[4096];
    struct problems p = { 0 };
    *r = (struct rig){ .ops = rig_ops ? rig_ops : kernel_ops_cpu() };
    int n = snprintf(text, sizeof text, "{\"model\":\"%s\",\"dataset\":[\"x\"],\"output_dir\":\"x\"%s}", dir, more);
    if (spec_parse(&r->spec, text, (size_t)n, &p) != OK) ck_abort_msg("spec: %s", p.v[0].message);
    int rc = model_config_read(&r->config, dir, &r->spec, err);
    if (rc != OK) return rc;
    if ((rc = mesh_choose(&r->mesh, &r->spec, r->config.H, r->config.Hkv, rank, err)) != OK) return rc;
    if (w && (rc = mesh_connect(&r->mesh, w, err)) != OK) return rc;
    ck_assert_int_eq(r->ops->stream_new(&r->s, true, err), OK);
    struct model_options o = { &r->spec, &r->config, r->ops, &r->mesh, policy, max_T, max_docs, rig_tile_rows };
    for (int i = 0; i < MEM_PLACES; i++) arena_init(&r->arenas[i], (enum mem_place)i, NULL, 0);
    if ((rc = lay_out(r, &o, err)) != OK) return rc;
    model_free(r->m);
    r->m = NULL;
    for (int i = 0; i < MEM_PLACES; i++) {
        r->planned[i] = r->arenas[i].peak;
        arena_release_all(&r->arenas[i]);
        r->memory[i] = aligned_alloc(4096, (size_t)(r->planned[i] + 4096) / 4096 * 4096);
        if (w && i == PLACE_SHARED) { free(r->memory[i]); r->memory[i] = comm_memory(w); }
        memset(r->memory[i], 0xff, (size_t)r->planned[i]);         /* NaN: what is read before it is written shows */
        arena_init(&r->arenas[i], (enum mem_place)i, r->memory[i], r->planned[i]);
        if (w && i == PLACE_SHARED) r->memory[i] = NULL;
    }
    rc = lay_out(r, &o, err);
    for (int i = 0; i < MEM_PLACES; i++) ck_assert_int_eq(r->arenas[i].peak, r->planned[i]);
    return rc;
}

void rig_close(struct rig *r)
{
    model_free(r->m);
    for (int i = 0; i < MEM_PLACES; i++) { arena_release_all(&r->arenas[i]); free(r->memory[i]); }
    if (r->s) r->ops->stream_free(r->s);
    model_config_release(&r->config);
    spec_release(&r->spec);
}

static void *get(const struct safetensors *s, const char *name, enum dtype dt, int64_t *n)
{
    const struct st_tensor *t = safetensors_find(s, name);
    ck_assert_msg(t != NULL, "no tensor %s", name);
    void *p = xcalloc((unsigned long)t->n + 1, 8);
    struct error err;
    ck_assert_int_eq(safetensors_get(s, t, dt, p, 0, t->n, &err), OK);
    if (n) *n = t->n;
    return p;
}

void case_open(struct test_case *c, const char *dir)
{
    char path[1100];
    struct error err;
    (void)snprintf(path, sizeof path, "%s/case.safetensors", dir);
    ck_assert_msg(safetensors_open(&c->file, path, "", &err) == OK, "%s", err.text);
    c->row = (struct row){ 0 };
    c->row.ids = get(c->file, "input_ids", DT_I32, &c->row.T);
    c->row.labels = get(c->file, "labels", DT_I32, NULL);
    c->row.positions = get(c->file, "position_ids", DT_I32, NULL);
    c->row.weights = get(c->file, "loss_weights", DT_F32, NULL);
    c->row.cu = get(c->file, "cu_seqlens", DT_I64, &c->row.n_docs);
    c->row.n_docs--;
    for (int64_t i = 0; i < c->row.T; i++) c->row.weight_sum += (double)c->row.weights[i];
}

void case_close(struct test_case *c)
{
    free(c->row.ids);
    free(c->row.labels);
    free(c->row.positions);
    free(c->row.weights);
    free(c->row.cu);
    safetensors_close(c->file);
}

double *case_get(const struct test_case *c, const char *name, int64_t *n) { return get(c->file, name, DT_F64, n); }
