#include "worker/model/patterns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANK_MAX = 4096, KEYS_MAX = 10000 };
#define ALPHA_MAX 1e6

int patterns_open(struct patterns *p, const cJSON *object, const char *where, double min, double max, bool whole, struct error *err)
{
    *p = (struct patterns){ 0 };
    if (!object || cJSON_IsNull(object)) return OK;
    if (!cJSON_IsObject(object)) return error_set(err, E_INVALID, "%s: expected an object of module names", where);
    int n = cJSON_GetArraySize(object), rc = OK;
    if (n > KEYS_MAX) return error_set(err, E_LIMIT, "%s: %d patterns; at most %d are taken", where, n, KEYS_MAX);
    p->v = xcalloc((unsigned long)n + 1, sizeof *p->v);
    p->space = regex_space_new();
    for (const cJSON *v = object->child; v && rc == OK; v = v->next) {
        struct pattern *q = &p->v[p->n++];
        q->key = xstrdup(v->string);
        if (!json_number(v, &q->value) || !(q->value >= min && q->value <= max) || (whole && q->value != floor(q->value))) {
            rc = error_set(err, E_INVALID, "%s: the value of \"%.200s\" is expected to be a %snumber from %g to %g", where, v->string, whole ? "whole " : "", min, max);
            break;
        }
        char *text = xasprintf("\\A(?:.*\\.)?(?:%s)\\z", v->string);       /* PEFT: re.match("(.*\.)?(key)$") */
        rc = regex_open(&q->regex, text, strlen(text), err);
        if (rc != OK) (void)error_prefix(err, "%s: \"%.200s\"", where, v->string);
        free(text);
    }
    if (rc != OK) patterns_release(p);
    return rc;
}

void patterns_release(struct patterns *p)
{
    for (int i = 0; i < p->n; i++) {
        regex_free(p->v[i].regex);
        free(p->v[i].key);
    }
    free(p->v);
    regex_space_free(p->space);
    *p = (struct patterns){ 0 };
}

int patterns_value(struct patterns *p, const char *module, double otherwise, double *out, struct error *err)
{
    *out = otherwise;
    for (int i = 0; i < p->n; i++) {
        struct regex_iter it = { 0 };
        size_t start, end;
        bool found = false;
        int rc = regex_next(p->v[i].regex, p->space, module, strlen(module), &it, &start, &end, &found, err);
        if (rc != OK) return error_prefix(err, "\"%.200s\"", p->v[i].key);
        if (!found) continue;
        p->v[i].used = true;
        *out = p->v[i].value;
        return OK;
    }
    return OK;
}

const char *patterns_unused(const struct patterns *p)
{
    for (int i = 0; i < p->n; i++) if (!p->v[i].used) return p->v[i].key;
    return NULL;
}

int lora_patterns_open(struct lora_patterns *p, const cJSON *config, const char *where, struct error *err)
{
    *p = (struct lora_patterns){ 0 };
    const char *colon = *where ? ": " : "";
    char *rank = xasprintf("%s%srank_pattern", where, colon), *alpha = xasprintf("%s%salpha_pattern", where, colon);
    int rc = patterns_open(&p->rank, json_get(config, "rank_pattern"), rank, 1, RANK_MAX, true, err);
    if (rc == OK) rc = patterns_open(&p->alpha, json_get(config, "alpha_pattern"), alpha, 0, ALPHA_MAX, false, err);
    if (rc != OK) lora_patterns_release(p);
    free(rank);
    free(alpha);
    return rc;
}

void lora_patterns_release(struct lora_patterns *p)
{
    patterns_release(&p->rank);
    patterns_release(&p->alpha);
}

int lora_patterns_of(struct lora_patterns *p, const char *module, int64_t rank, double alpha, bool rslora, int64_t *r, float *scale, struct error *err)
{
    double own_rank, own_alpha;
    int rc = patterns_value(&p->rank, module, (double)rank, &own_rank, err);
    if (rc == OK) rc = patterns_value(&p->alpha, module, alpha, &own_alpha, err);
    if (rc != OK) return rc;
    *r = (int64_t)own_rank;
    *scale = (float)(own_alpha / (rslora ? sqrt(own_rank) : own_rank));
    return OK;
}
