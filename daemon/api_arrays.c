/* api_arrays.c - many jobs from one spec: every combination of a grid, or a random sample; and specs from other tools' commands.
 *
 * All members are checked and planned before the first is stored, so an array exists whole or not at all. */
#include "daemon/api.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/import.h"
#include "daemon/daemon.h"
#include "daemon/planner.h"

enum { MEMBERS_MAX = 200, FIELDS_MAX = 8 };

struct member { struct array *a; struct spec spec; char *plan; };
struct array {
    struct daemon *d;
    struct request *q;
    struct member *m; int n, n_planned;
    char *fields;               /* JSON list */
    struct problems p;
    struct error err;
    int rc;
};

static void array_free(struct array *a)
{
    for (int i = 0; i < a->n; i++) { spec_release(&a->m[i].spec); free(a->m[i].plan); }
    problems_release(&a->p);
    free(a->m);
    free(a->fields);
    free(a);
}

/* splitmix64: the sample is the same for the same seed, everywhere. */
static double uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) / 9007199254740992.0;
}

static int store_array(struct daemon *d, struct job *j, void *arg, struct error *err)
{
    struct array *a = arg;
    char id[24];
    (void)snprintf(id, sizeof id, "a%lld", (long long)j->row.id);
    int rc = store_exec(d->store, err, "INSERT INTO arrays(id,fields,created_ms) VALUES(?,?,?)", "ssi", id, a->fields, wall_ms());
    return rc == OK ? store_exec(d->store, err, "UPDATE jobs SET array_id=? WHERE id=?", "si", id, j->row.id) : rc;
}

static void finish(struct array *a)
{
    char id[24] = "";
    int rc = a->rc;
    cJSON *o = cJSON_CreateObject(), *list;
    struct job *j;
    if (a->p.n > 0) reply_problem(a->q, 422, "invalid", &a->p, "the array is refused: %s", a->p.v[0].message);
    else if (rc != OK) reply_error(a->q, &a->err);
    else {
        json_add_str(o, "id", NULL);
        list = cJSON_AddArrayToObject(o, "jobs");
        for (int i = 0; i < a->n && rc == OK; i++) {
            struct job_origin from = { a->m[i].plan, i ? id : NULL, 0 };
            rc = job_create(a->d, &a->m[i].spec, &from, i ? NULL : store_array, a, &j, &a->err);
            if (rc != OK) break;
            char text[24];
            (void)snprintf(text, sizeof text, "j%lld", (long long)j->row.id);
            if (i == 0) (void)snprintf(id, sizeof id, "a%s", text + 1);
            (void)cJSON_AddItemToArray(list, cJSON_CreateString(text));
        }
        if (rc == OK) {
            (void)cJSON_ReplaceItemInObjectCaseSensitive(o, "id", cJSON_CreateString(id));
            char *where = xasprintf("/v1/arrays/%s", id);
            reply_header(a->q, "Location", where);
            free(where);
            reply_json(a->q, 201, o);
            array_free(a);
            return;
        }
        const cJSON *made;          /* the disk filled up on the way: what was stored does not run */
        cJSON_ArrayForEach(made, list) {
            int64_t n;
            struct error ignored;
            if (job_id_parse(made->valuestring, &n) && (j = job_find(a->d, n)) != NULL) (void)job_want_set(a->d, j, WANT_CANCEL, "array_incomplete", &ignored);
        }
        reply_error(a->q, &a->err);
    }
    cJSON_Delete(o);
    array_free(a);
}

static void planned(void *arg, int rc, const char *plan, const struct problems *p, const struct error *err)
{
    struct member *m = arg;
    struct array *a = m->a;
    if (rc == OK) m->plan = xstrdup(plan);
    else if (p && p->n > 0) {
        for (int i = 0; i < p->n && a->p.n < 50; i++) problems_add(&a->p, p->v[i].pointer, p->v[i].code, "member %d: %s", (int)(m - a->m), p->v[i].message);
    } else if (a->rc == OK) { a->rc = rc; a->err = *err; }
    if (++a->n_planned == a->n) finish(a);
}

static void set(cJSON *spec, const char *field, cJSON *value)
{
    cJSON_DeleteItemFromObjectCaseSensitive(spec, field);
    (void)cJSON_AddItemToObject(spec, field, value);
}

/* Value of a field for member i of a random sample: {"min","max","log":bool} or a list to choose from. Whole numbers: each from min to max alike,
 * with log each k by log((k + 1) / k). */
static cJSON *sample(const cJSON *how, uint64_t *rng, const struct field *f)
{
    double u = uniform(rng), lo = json_num(how, "min", 0), hi = json_num(how, "max", 1);
    if (cJSON_IsArray(how)) return cJSON_Duplicate(cJSON_GetArrayItem(how, (int)(u * cJSON_GetArraySize(how))), true);
    double end = hi;
    if (f->type == FIELD_INT) lo = ceil(lo), hi = floor(hi), end = hi + 1;
    double v = json_bool(how, "log", false) ? exp(log(lo) + u * (log(end) - log(lo))) : lo + u * (end - lo);
    if (f->type == FIELD_INT) v = floor(v);
    v = fmin(fmax(v, lo), hi);          /* rounding may step over an end */
    cJSON *holder = cJSON_CreateObject();
    json_add_num(holder, "v", v);
    cJSON *out = cJSON_DetachItemFromObject(holder, "v");
    cJSON_Delete(holder);
    return out;
}

static bool check_axes(const cJSON *axes, bool random, struct problems *p, int64_t *product)
{
    const cJSON *v;
    int n = 0, before = p->n;
    *product = 1;
    cJSON_ArrayForEach(v, axes) {
        char at[120];
        (void)snprintf(at, sizeof at, "/%s/%.80s", random ? "random" : "grid", v->string);
        const struct field *f = spec_field(v->string);
        double lo = json_num(v, "min", NAN), hi = json_num(v, "max", NAN);
        if (f == NULL) problems_add(p, at, "unknown_field", "no such field of a job");
        else if (strcmp(v->string, "output_dir") == 0) problems_add(p, at, "conflict", "each member gets its own folder under the spec's output_dir");
        else if (cJSON_IsArray(v) && cJSON_GetArraySize(v) >= 1 && cJSON_GetArraySize(v) <= MEMBERS_MAX) *product *= random ? 1 : cJSON_GetArraySize(v);
        else if (!random || !cJSON_IsObject(v)) problems_add(p, at, "wrong_type", "expected a list of 1 to %d values", MEMBERS_MAX);
        else if (lo < hi && f->type == FIELD_INT && ceil(lo) > floor(hi)) problems_add(p, at, "out_of_range", "expected a whole number from \"min\" to \"max\"");
        else if (!(lo < hi) || (json_bool(v, "log", false) && !(lo > 0)) || (f->type != FIELD_REAL && f->type != FIELD_INT))
            problems_add(p, at, "out_of_range", "expected {\"min\",\"max\"} with min < max (above 0 with log) for a number, or a list");
        if (++n > FIELDS_MAX || *product > 1000000) { problems_add(p, at, "out_of_range", "too many fields or values"); break; }
    }
    if (n == 0) problems_add(p, random ? "/random" : "/grid", "required", "expected at least one field");
    return p->n == before;
}

void arrays_create(struct daemon *d, struct request *q)
{
    struct problems p = { 0 };
    struct error err;
    cJSON *body = body_object(q), *v;
    if (body == NULL) return;
    cJSON *spec = json_get(body, "spec"), *grid = json_get(body, "grid"), *random = json_get(body, "random"), *axes = grid ? grid : random;
    int64_t count = 0, seed = 0, product = 0;
    cJSON_ArrayForEach(v, body)
        if (strcmp(v->string, "spec") != 0 && strcmp(v->string, "grid") != 0 && strcmp(v->string, "random") != 0 && strcmp(v->string, "count") != 0 && strcmp(v->string, "seed") != 0)
            problems_add(&p, "", "unknown_field", "unknown field \"%.60s\"; expected spec and grid, or spec, random, count and seed", v->string);
    if (!cJSON_IsObject(spec)) problems_add(&p, "/spec", "required", "expected a job spec");
    if (!cJSON_IsObject(axes) || (grid && random)) problems_add(&p, "/grid", "required", "expected either grid or random: an object of fields");
    else if (check_axes(axes, random != NULL, &p, &product)) {
        if (random && (!json_int(body, "count", &count) || count < 1 || count > MEMBERS_MAX)) problems_add(&p, "/count", "out_of_range", "expected 1 to %d", MEMBERS_MAX);
        if (json_get(body, "seed") && !json_int(body, "seed", &seed)) problems_add(&p, "/seed", "wrong_type", "expected a whole number");
        if (grid && json_get(body, "count")) problems_add(&p, "/count", "conflict", "a grid has as many jobs as it has combinations; count goes with random");
        if (grid && json_get(body, "seed")) problems_add(&p, "/seed", "conflict", "a grid draws nothing; seed goes with random");
        if (grid) count = product;
        if (grid && product > MEMBERS_MAX) problems_add(&p, "/grid", "out_of_range", "expected at most %d combinations, got %lld", MEMBERS_MAX, (long long)product);
    }
    struct array *a = xcalloc(1, sizeof *a);
    a->d = d;
    a->q = q;
    cJSON *fields = cJSON_CreateArray();
    if (p.n == 0) cJSON_ArrayForEach(v, axes) (void)cJSON_AddItemToArray(fields, cJSON_CreateString(v->string));
    a->fields = json_line(fields);
    cJSON_Delete(fields);
    a->m = xcalloc((unsigned long)(count > 0 ? count : 1), sizeof *a->m);
    uint64_t rng = (uint64_t)seed;
    for (int64_t i = 0; i < count && p.n == 0; i++) {
        cJSON *one = cJSON_Duplicate(spec, true);
        int64_t rest = i;
        char *text, tag[40];
        const char *name = json_str(spec, "name"), *dir = json_str(spec, "output_dir");
        cJSON_ArrayForEach(v, axes) {
            if (random) { set(one, v->string, sample(v, &rng, spec_field(v->string))); continue; }
            int n = cJSON_GetArraySize(v);
            set(one, v->string, cJSON_Duplicate(cJSON_GetArrayItem(v, (int)(rest % n)), true));
            rest /= n;
        }
        (void)snprintf(tag, sizeof tag, "%lld", (long long)i);
        if (dir) { text = xasprintf("%s/%s", dir, tag); set(one, "output_dir", cJSON_CreateString(text)); free(text); }
        if (name && json_get(axes, "name") == NULL && strlen(name) < 190) { text = xasprintf("%s [%s]", name, tag); set(one, "name", cJSON_CreateString(text)); free(text); }
        text = json_line(one);
        struct problems mine = { 0 };
        a->m[i].a = a;
        if (spec_parse(&a->m[i].spec, text, strlen(text), &mine) == OK) submit_check(d, &a->m[i].spec, &mine);
        for (int k = 0; k < mine.n && p.n < 50; k++) problems_add(&p, mine.v[k].pointer, mine.v[k].code, "member %s: %s", tag, mine.v[k].message);
        problems_release(&mine);
        a->n = (int)i + 1;
        free(text);
        cJSON_Delete(one);
    }
    if (p.n > 0) {
        reply_problem(q, 422, "invalid", &p, "the array is refused: %s", p.v[0].message);
        problems_release(&p);
        array_free(a);
        cJSON_Delete(body);
        return;
    }
    cJSON_Delete(body);
    request_hold(q);
    int n = a->n;
    for (int i = 0; i < n; i++) {
        char *text = spec_line(&a->m[i].spec);
        int rc = planner_ask(d, ASK_PLAN, text, planned, &a->m[i], &err);
        free(text);
        if (rc == OK) continue;
        a->n_planned += n - i - 1;              /* the rest is never started */
        planned(&a->m[i], rc, NULL, NULL, &err);
        return;
    }
}

static void show(struct daemon *d, struct request *q, int status)
{
    struct error err;
    cJSON *row, *jobs, *j, *f;
    const char *id = q->param[0];
    if (store_one(d->store, &row, &err, "SELECT id,fields AS \"j:fields\",created_ms AS \"t:created_at\" FROM arrays WHERE id=?", "s", id) != OK) { reply_error(q, &err); return; }
    if (row == NULL) { reply_problem(q, 404, "not_found", NULL, "there is no array \"%.40s\"", id); return; }
    if (store_rows(d->store, &jobs, &err, "SELECT 'j'||id AS id,name,state,reason,last_step AS step,max_steps,summary AS \"j:summary\",spec AS \"j:spec\" FROM jobs WHERE array_id=? ORDER BY jobs.id", "s", id) != OK) {
        reply_error(q, &err);
        cJSON_Delete(row);
        return;
    }
    cJSON *states = cJSON_AddObjectToObject(row, "states");
    cJSON_ArrayForEach(j, jobs) {
        cJSON *values = cJSON_CreateObject(), *spec = json_get(j, "spec");
        int64_t n = 0;
        const char *state = json_str(j, "state");
        cJSON_ArrayForEach(f, json_get(row, "fields")) {
            cJSON *v = cJSON_IsString(f) ? json_get(spec, f->valuestring) : NULL;
            if (v) (void)cJSON_AddItemToObject(values, f->valuestring, cJSON_Duplicate(v, true));
        }
        cJSON_DeleteItemFromObjectCaseSensitive(j, "spec");
        (void)cJSON_AddItemToObject(j, "values", values);
        (void)json_int(states, state, &n);
        cJSON_DeleteItemFromObjectCaseSensitive(states, state);
        json_add_int(states, state, n + 1);
    }
    (void)cJSON_AddItemToObject(row, "jobs", jobs);
    reply_json(q, status, row);
}

void array_show(struct daemon *d, struct request *q) { show(d, q, 200); }

void array_cancel(struct daemon *d, struct request *q)
{
    struct error err;
    cJSON *jobs, *row;
    if (store_rows(d->store, &jobs, &err, "SELECT id FROM jobs WHERE array_id=? AND state NOT IN ('succeeded','failed','cancelled')", "s", q->param[0]) != OK) { reply_error(q, &err); return; }
    int rc = OK;
    cJSON_ArrayForEach(row, jobs) {
        int64_t id;
        struct job *j = json_int(row, "id", &id) ? job_find(d, id) : NULL;
        if (j && rc == OK) rc = job_want_set(d, j, WANT_CANCEL, "cancelled", &err);
    }
    cJSON_Delete(jobs);
    if (rc != OK) { reply_error(q, &err); return; }
    show(d, q, 202);
}

void import_post(struct daemon *d, struct request *q)
{
    (void)d;
    struct error err;
    cJSON *out = NULL, *body = body_object(q);
    if (body == NULL) return;
    const char *tool = json_str(body, "format"), *text = json_str(body, "text");
    int rc;
    if (text == NULL || tool == NULL) rc = error_set(&err, E_INVALID, "expected {\"format\":\"swift\"|\"llamafactory\",\"text\":\"…\"}");
    else if (strcmp(tool, "swift") == 0) rc = import_swift(&out, text, strlen(text), &err);
    else if (strcmp(tool, "llamafactory") == 0) rc = import_llamafactory(&out, text, strlen(text), &err);
    else rc = error_set(&err, E_INVALID, "format: expected swift or llamafactory");
    if (rc == OK) reply_json(q, 200, out);
    else reply_error(q, &err);
    cJSON_Delete(body);
}
