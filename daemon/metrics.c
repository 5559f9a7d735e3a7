/* metrics.c - see metrics.h. */
#include "daemon/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/message.h"

enum { NAME_MAX_BYTES = 80, NAMES_PER_RECORD = 128, NAMES_IN_ALL = 4000, RANKS_SHOWN = 64 };

static void walk(const cJSON *o, const char *prefix, int depth, int *left, void (*f)(void *, const char *, double), void *arg)
{
    for (const cJSON *v = o->child; v && *left > 0; v = v->next) {
        char name[NAME_MAX_BYTES];
        double x;
        if (v->string == NULL || snprintf(name, sizeof name, "%s%s", prefix, v->string) >= (int)sizeof name) continue;
        if (depth == 0 && (strcmp(name, "t") == 0 || strcmp(name, "step") == 0 || strcmp(name, "rank") == 0)) continue;
        if (json_number(v, &x)) { f(arg, name, x); (*left)--; }
        else if (cJSON_IsNull(v)) {
            char mark[NAME_MAX_BYTES + 12];
            (void)snprintf(mark, sizeof mark, "%s_nonfinite", v->string);
            const char *what = json_str(o, mark);
            x = what && strcmp(what, "inf") == 0 ? INFINITY : what && strcmp(what, "-inf") == 0 ? -INFINITY : NAN;
            f(arg, name, x);
            (*left)--;
        } else if (cJSON_IsObject(v) && depth < 3) {
            char deeper[NAME_MAX_BYTES + 2];
            (void)snprintf(deeper, sizeof deeper, "%s.", name);
            walk(v, deeper, depth + 1, left, f, arg);
        }
    }
}

void metrics_each(const cJSON *m, void (*f)(void *arg, const char *name, double v), void *arg)
{
    int left = NAMES_PER_RECORD;
    walk(m, "", 0, &left, f, arg);
}

/* Names become numbers once; the table is small and read whole at first use. */
static struct { char **name; int n; } dictionary;      /* index = id - 1 */
static struct store *dictionary_of;

static bool load_name(void *arg, struct store_row *r)
{
    (void)arg;
    int64_t id = row_int(r, 0);
    while (dictionary.n < id) {
        dictionary.name = xrealloc(dictionary.name, (unsigned long)(dictionary.n + 1) * sizeof *dictionary.name);
        dictionary.name[dictionary.n++] = NULL;
    }
    free(dictionary.name[id - 1]);
    dictionary.name[id - 1] = xstrdup(row_text(r, 1));
    return true;
}

static void dictionary_load(struct store *s)
{
    for (int i = 0; i < dictionary.n; i++) free(dictionary.name[i]);
    dictionary.n = 0;
    dictionary_of = s;
    (void)store_each(s, load_name, NULL, NULL, "SELECT id,name FROM metric_names WHERE id BETWEEN 1 AND 65535 ORDER BY id", "");
}

static int name_id(struct store *s, const char *name, bool add)
{
    if (dictionary_of != s) dictionary_load(s);
    for (int i = 0; i < dictionary.n; i++) if (dictionary.name[i] && strcmp(dictionary.name[i], name) == 0) return i + 1;
    if (!add || dictionary.n >= NAMES_IN_ALL) return 0;
    if (store_exec(s, NULL, "INSERT OR IGNORE INTO metric_names(name) VALUES(?)", "s", name) != OK) return 0;
    dictionary_load(s);         /* a rollback would leave it ahead of the table: metrics_store() reloads then */
    for (int i = 0; i < dictionary.n; i++) if (dictionary.name[i] && strcmp(dictionary.name[i], name) == 0) return i + 1;
    return 0;
}

struct packing { struct store *s; unsigned char data[NAMES_PER_RECORD * 10]; size_t n; };

static void pack(void *arg, const char *name, double v)
{
    struct packing *p = arg;
    int id = name_id(p->s, name, true);
    if (id == 0 || p->n + 10 > sizeof p->data) return;
    p->data[p->n] = (unsigned char)id;
    p->data[p->n + 1] = (unsigned char)(id >> 8);
    memcpy(p->data + p->n + 2, &v, 8);
    p->n += 10;
}

int metrics_store(struct store *s, int64_t job, int rank, int64_t attempt, int64_t seq, int64_t ms, const cJSON *m, struct error *err)
{
    struct packing p = { .s = s };
    int64_t step = 0;
    (void)json_int(m, "step", &step);
    metrics_each(m, pack, &p);
    int rc = store_exec(s, err, "INSERT OR IGNORE INTO metrics(job,rank,attempt,seq,step,ms,data) VALUES(?,?,?,?,?,?,?)", "iiiiiib", job, (int64_t)rank, attempt, seq,
                        step, ms, (const void *)p.data, p.n);
    if (rc != OK) dictionary_of = NULL;
    return rc;
}

/* --- reading --- */

struct series { int id; const char *name; int rank; struct point *p; size_t n, cap; int64_t *restart; size_t n_restart; };
struct reading { struct series *s; int n; int64_t attempt; int rank; int64_t from, to; bool no_memory; };

/* A later attempt goes on from a checkpoint: what the earlier one did after that step is done again, and replaced. */
static void drop_from(struct series *s, int64_t step)
{
    while (s->n > 0 && s->p[s->n - 1].step >= step) s->n--;
    s->restart = xrealloc(s->restart, (s->n_restart + 1) * sizeof *s->restart);
    s->restart[s->n_restart++] = step;
}

static bool take(void *arg, struct store_row *r)
{
    struct reading *g = arg;
    int64_t attempt = row_int(r, 0), step = row_int(r, 1);
    size_t len;
    const unsigned char *data = row_blob(r, 2, &len);
    if (attempt != g->attempt) {
        if (g->attempt > 0) for (int i = 0; i < g->n; i++) drop_from(&g->s[i], step);
        g->attempt = attempt;
    }
    if (step < g->from || step > g->to) return true;
    for (size_t at = 0; at + 10 <= len; at += 10) {
        int id = data[at] | data[at + 1] << 8;
        for (int i = 0; i < g->n; i++) {
            struct series *s = &g->s[i];
            if (s->id != id) continue;
            if (s->n == s->cap) {       /* as many as steps were asked for: the request fails without memory, not the coordinator */
                struct point *more = realloc(s->p, (s->cap ? s->cap * 2 : 256) * sizeof *s->p);
                if (more == NULL) { g->no_memory = true; return false; }
                s->p = more;
                s->cap = s->cap ? s->cap * 2 : 256;
            }
            s->p[s->n].step = step;
            memcpy(&s->p[s->n++].v, data + at + 2, 8);
        }
    }
    return true;
}

size_t points_thin(struct point *p, size_t n, size_t max)
{
    if (n <= max || max < 4) return n;
    size_t buckets = (max - 2) / 3, out = 1, inner = n - 2;     /* each keeps its least, its greatest and one non-finite */
    for (size_t b = 0; b < buckets; b++) {
        size_t lo = 1 + inner * b / buckets, hi = 1 + inner * (b + 1) / buckets, least = 0, most = 0, odd = 0;
        for (size_t i = lo; i < hi; i++) {
            if (!isfinite(p[i].v)) { if (!odd) odd = i; continue; }
            if (!least || p[i].v < p[least].v) least = i;
            if (!most || p[i].v > p[most].v) most = i;
        }
        size_t keep[3] = { least, most, odd };
        for (int i = 0; i < 2; i++)         /* in order of step */
            for (int k = 0; k < 2 - i; k++)
                if (keep[k] > keep[k + 1]) { size_t t = keep[k]; keep[k] = keep[k + 1]; keep[k + 1] = t; }
        for (int i = 0; i < 3; i++)
            if (keep[i] && (i == 0 || keep[i] != keep[i - 1])) p[out++] = p[keep[i]];
    }
    p[out++] = p[n - 1];
    return out;
}

static const char *unit_of(const char *name)
{
    for (int i = 0; i < n_metric_names; i++) if (strcmp(metric_names[i].name, name) == 0) return metric_names[i].unit;
    return "";
}

static cJSON *series_json(struct series *s, int64_t max_points)
{
    cJSON *o = cJSON_CreateObject(), *odd = NULL;
    size_t whole = s->n;
    s->n = points_thin(s->p, s->n, (size_t)max_points);
    json_add_str(o, "name", s->name);
    json_add_int(o, "rank", s->rank);
    json_add_str(o, "unit", unit_of(s->name));
    json_add_int(o, "count", (int64_t)whole);
    char *text = xmalloc(s->n * 64 + 3);            /* one raw value: a tree node per number would be ten times the memory */
    size_t n = 0;
    text[n++] = '[';
    for (size_t i = 0; i < s->n; i++) {
        double v = s->p[i].v;
        if (i) text[n++] = ',';
        if (isfinite(v)) {
            int digits = 9;
            char num[40];
            do (void)snprintf(num, sizeof num, "%.*g", digits, v); while (strtod(num, NULL) != v && (digits += 4) <= 17);
            n += (size_t)sprintf(text + n, "[%lld,%s]", (long long)s->p[i].step, num);
        } else {
            n += (size_t)sprintf(text + n, "[%lld,null]", (long long)s->p[i].step);
            if (!odd) odd = cJSON_CreateArray();
            cJSON *pair = cJSON_CreateArray();
            (void)cJSON_AddItemToArray(pair, cJSON_CreateNumber((double)s->p[i].step));
            (void)cJSON_AddItemToArray(pair, cJSON_CreateString(isnan(v) ? "nan" : v > 0 ? "inf" : "-inf"));
            (void)cJSON_AddItemToArray(odd, pair);
        }
    }
    text[n++] = ']';
    text[n] = '\0';
    (void)cJSON_AddRawToObject(o, "points", text);
    free(text);
    if (odd) (void)cJSON_AddItemToObject(o, "nonfinite", odd);
    if (s->n_restart) {
        cJSON *list = cJSON_AddArrayToObject(o, "restarts");
        for (size_t i = 0; i < s->n_restart; i++) (void)cJSON_AddItemToArray(list, cJSON_CreateNumber((double)s->restart[i]));
    }
    return o;
}

static bool take_rank(void *arg, struct store_row *r)
{
    int *list = arg;
    if (list[0] < RANKS_SHOWN) list[++list[0]] = (int)row_int(r, 0);
    return true;
}

int metrics_series(struct store *s, int64_t job, char **names, int n_names, int rank, int64_t from, int64_t to, int64_t max_points, cJSON **out,
                   struct error *err)
{
    int ranks[RANKS_SHOWN + 1] = { 0 }, rc = OK;
    *out = NULL;
    if (rank >= 0) { ranks[0] = 1; ranks[1] = rank; }
    else rc = store_each(s, take_rank, ranks, err, "SELECT DISTINCT rank FROM ranks WHERE job=? ORDER BY rank", "i", job);
    if (dictionary_of != s) dictionary_load(s);
    cJSON *o = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(o, "series");
    for (int k = 1; k <= ranks[0] && rc == OK; k++) {
        struct series *v = xcalloc((unsigned long)n_names, sizeof *v);
        for (int i = 0; i < n_names; i++) v[i] = (struct series){ .id = name_id(s, names[i], false), .name = names[i], .rank = ranks[k] };
        struct reading g = { v, n_names, 0, ranks[k], from, to, false };
        rc = store_each(s, take, &g, err, "SELECT attempt,step,data FROM metrics WHERE job=? AND rank=? ORDER BY attempt,seq", "ii", job, (int64_t)ranks[k]);
        if (rc == OK && g.no_memory) rc = error_set(err, E_NOMEM, "there is no memory for this answer now; ask for fewer names or steps");
        for (int i = 0; i < n_names; i++) {
            if (rc == OK) (void)cJSON_AddItemToArray(list, series_json(&v[i], max_points));
            free(v[i].p);
            free(v[i].restart);
        }
        free(v);
    }
    if (rc == OK) *out = o;
    else cJSON_Delete(o);
    return rc;
}

static bool add_figures(void *arg, struct store_row *r)
{
    size_t len;
    const unsigned char *data = row_blob(r, 0, &len);
    for (size_t at = 0; at + 10 <= len; at += 10) {
        int id = data[at] | data[at + 1] << 8;
        double v;
        memcpy(&v, data + at + 2, 8);
        if (id < 1 || id > dictionary.n || dictionary.name[id - 1] == NULL || json_get(arg, dictionary.name[id - 1])) continue;
        if (v == floor(v) && fabs(v) < 9007199254740992.0) json_add_int(arg, dictionary.name[id - 1], (int64_t)v);
        else json_add_num(arg, dictionary.name[id - 1], v);
    }
    return false;
}

void metrics_last(struct store *s, int64_t job, int rank, int64_t attempt, cJSON *o)
{
    if (dictionary_of != s) dictionary_load(s);
    (void)store_each(s, add_figures, o, NULL, "SELECT data FROM metrics WHERE job=? AND rank=? AND attempt=? ORDER BY seq DESC LIMIT 1", "iii", job, (int64_t)rank, attempt);
}

static bool mark_names(void *arg, struct store_row *r)
{
    size_t len;
    const unsigned char *data = row_blob(r, 0, &len);
    bool *seen = arg;
    for (size_t at = 0; at + 10 <= len; at += 10) {
        int id = data[at] | data[at + 1] << 8;
        if (id <= NAMES_IN_ALL) seen[id] = true;
    }
    return true;
}

int metrics_names(struct store *s, int64_t job, cJSON **out, struct error *err)
{
    bool *seen = xcalloc(NAMES_IN_ALL + 1, sizeof *seen);
    if (dictionary_of != s) dictionary_load(s);
    int rc = store_each(s, mark_names, seen, err, "SELECT data FROM metrics WHERE job=? AND rank=0 ORDER BY attempt DESC,seq DESC LIMIT 200", "i", job);
    *out = cJSON_CreateArray();
    for (int i = 0; i < dictionary.n; i++)
        if (seen[i + 1] && dictionary.name[i]) (void)cJSON_AddItemToArray(*out, cJSON_CreateString(dictionary.name[i]));
    free(seen);
    return rc;
}
