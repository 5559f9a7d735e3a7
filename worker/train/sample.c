#include "worker/train/sample.h"

#include <stdlib.h>
#include <string.h>

#include "worker/data/tokenizer.h"

enum { NEW_TOKENS = 48 };

/* One document of n tokens, nothing trained; and padding to a multiple of the row's ranks. */
static void set_row(struct row *row, const int32_t *ids, int64_t n, int64_t multiple)
{
    int64_t T = (n + multiple - 1) / multiple * multiple;
    for (int64_t i = 0; i < n; i++) {
        row->ids[i] = ids[i];
        row->positions[i] = (int32_t)i;
        row->labels[i] = -100;
        row->weights[i] = 0;
    }
    for (int64_t i = n; i < T; i++) {
        row->ids[i] = ids[0];
        row->positions[i] = (int32_t)(i - n);
        row->labels[i] = -100;
        row->weights[i] = 0;
    }
    row->T = T;
    row->tokens_real = n;
    row->n_docs = T > n ? 2 : 1;
    row->cu[0] = 0;
    row->cu[1] = n;
    row->cu[2] = T;
}

static int next_token(struct run *r, const struct ids *ids, struct row *row, float *logits, int32_t *out, struct error *err)
{
    bool mine = false;
    double told = 0;
    set_row(row, ids->v, ids->n, r->job.mesh.R * r->job.mesh.U);
    int rc = model_row(r->job.model, row, err);
    if (rc == OK) rc = model_last_logits(r->job.model, logits, &mine, err);
    if (rc != OK) return rc;
    if (mine) {
        int64_t best = 0;
        for (int64_t v = 1; v < r->job.config->V; v++)
            if (logits[v] > logits[best]) best = v;
        told = (double)best;
    }
    rc = run_sum(r, r->job.mesh.sp, &told, 1, err);         /* zero but on one rank */
    *out = (int32_t)told;
    return rc;
}

static int continue_prompt(struct run *r, const struct tokenizer *t, const char *prompt, char **text, struct error *err)
{
    int64_t room = r->job.max_T;
    struct ids ids = { 0 };
    struct row row = { .ids = xcalloc((unsigned long)room, 4), .labels = xcalloc((unsigned long)room, 4), .positions = xcalloc((unsigned long)room, 4),
                       .weights = xcalloc((unsigned long)room, 4), .cu = xcalloc(3, sizeof(int64_t)) };
    float *logits = xmalloc((unsigned long)r->job.config->V * sizeof *logits);
    int rc = tokenizer_encode(t, prompt, strlen(prompt), true, &ids, err);
    int64_t n = ids.n;
    if (rc == OK && (n == 0 || n >= room)) rc = error_set(err, E_INVALID, "sample_prompts: a prompt of %lld tokens; expected 1 to %lld", (long long)n, (long long)(room - 1));
    for (int i = 0; i < NEW_TOKENS && rc == OK && ids.n < room; i++) {
        int32_t id;
        rc = next_token(r, &ids, &row, logits, &id, err);
        if (rc != OK || id == tokenizer_eos(t)) break;
        if (ids.n == ids.cap) ids.v = xrealloc(ids.v, (unsigned long)(ids.cap = ids.cap * 2 + 64) * sizeof *ids.v);
        ids.v[ids.n++] = id;
    }
    size_t len;
    if (rc == OK) rc = tokenizer_decode(t, ids.v + n, ids.n - n, false, text, &len, err);
    ids_release(&ids);
    free(row.ids);
    free(row.labels);
    free(row.positions);
    free(row.weights);
    free(row.cu);
    free(logits);
    return rc;
}

int sample_log(struct run *r, struct error *err)
{
    const struct strlist *prompts = &r->spec->sample_prompts;
    struct tokenizer *t = NULL;
    if (prompts->n == 0 || (r->job.mesh.dp_rank != 0 && r->spec->zero_stage < 3)) return OK;
    int rc = tokenizer_open(&t, r->spec->model, err);
    for (int i = 0; i < prompts->n && rc == OK; i++) {
        char *text = NULL;
        link_step(r->link, r->progress.step, "sample");
        rc = continue_prompt(r, t, prompts->v[i], &text, err);
        if (rc != OK || r->job.mesh.rank != 0) {
            free(text);
            continue;
        }
        cJSON *o = cJSON_CreateObject();
        json_add_int(o, "step", r->progress.step);
        json_add_str(o, "prompt", prompts->v[i]);
        json_add_str(o, "text", text);
        rc = run_append(r, "samples.jsonl", o, err);
        cJSON_Delete(o);
        run_event(r, "info", "sample", "step %lld: %.300s -> %.600s", (long long)r->progress.step, prompts->v[i], text);
        free(text);
    }
    tokenizer_free(t);
    return rc;
}
