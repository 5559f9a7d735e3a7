/* spec.c - parsing, checking and printing a spec, all driven by the table in spec_fields.c. */
#include "api/spec.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/file.h"
#include "api/slurm.h"

void problems_add(struct problems *p, const char *pointer, const char *code, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    utf8_scrub(text);
    p->v = xrealloc(p->v, (size_t)(p->n + 1) * sizeof *p->v);
    p->v[p->n] = (struct problem){ xstrdup(pointer), xstrdup(code), xstrdup(text) };
    utf8_scrub(p->v[p->n++].pointer);
}

void problems_release(struct problems *p)
{
    for (int i = 0; i < p->n; i++) {
        free(p->v[i].pointer);
        free(p->v[i].code);
        free(p->v[i].message);
    }
    free(p->v);
    *p = (struct problems){ 0 };
}

cJSON *problems_json(const struct problems *p)
{
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < p->n; i++) {
        cJSON *o = cJSON_CreateObject();
        json_add_str(o, "pointer", p->v[i].pointer);
        json_add_str(o, "code", p->v[i].code);
        json_add_str(o, "message", p->v[i].message);
        (void)cJSON_AddItemToArray(list, o);
    }
    return list;
}

const struct field *spec_field(const char *name)
{
    for (int i = 0; i < n_spec_fields; i++)
        if (strcmp(spec_fields[i].name, name) == 0) return &spec_fields[i];
    return NULL;
}

static void *member(const struct spec *s, const struct field *f) { return (char *)s + f->offset; }

static bool is_choice(const struct field *f, const char *v)
{
    size_t n = strlen(v);
    for (const char *p = f->choices; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, v, n) == 0) return true;
        p += len + (p[len] == '|');
    }
    return false;
}

static const char *json_kind(const cJSON *v)
{
    return cJSON_IsString(v) ? "a string" : cJSON_IsNumber(v) || cJSON_IsRaw(v) ? "a number" : cJSON_IsBool(v) ? "a boolean" : cJSON_IsNull(v) ? "null"
         : cJSON_IsArray(v) ? "a list" : "an object";
}

/* "/name" with ~ and / escaped as RFC 6901 says; cut to fit. */
static void pointer_of(char out[600], const char *name, int index)
{
    size_t n = 0;
    out[n++] = '/';
    for (; *name && n < 560; name++) {
        if (*name == '~' || *name == '/') { out[n++] = '~'; out[n++] = *name == '~' ? '0' : '1'; }
        else out[n++] = *name;
    }
    out[n] = '\0';
    if (index >= 0) (void)snprintf(out + n, 600 - n, "/%d", index);
}

static bool string_ok(const struct field *f, const cJSON *v, const char *ptr, struct problems *p)
{
    if (!cJSON_IsString(v)) {
        problems_add(p, ptr, "wrong_type", "expected a string, got %s", json_kind(v));
        return false;
    }
    bool path = f->type == FIELD_PATH || f->type == FIELD_PATHS;
    if (path && v->valuestring[0] == '\0') {
        problems_add(p, ptr, "out_of_range", "expected a path, got an empty string");
        return false;
    }
    if (strlen(v->valuestring) > (size_t)f->max) {
        problems_add(p, ptr, "out_of_range", "expected at most %.0f bytes, got %zu", f->max, strlen(v->valuestring));
        return false;
    }
    return true;
}

static void take_strings(struct strlist *out, const struct field *f, const cJSON *v, const char *ptr, struct problems *p)
{
    if (cJSON_IsString(v)) {        /* one string stands for a list of one */
        if (!string_ok(f, v, ptr, p)) return;
        out->v = xcalloc(1, sizeof *out->v);
        out->v[out->n++] = xstrdup(v->valuestring);
        return;
    }
    if (!cJSON_IsArray(v)) {
        problems_add(p, ptr, "wrong_type", "expected a list of strings, got %s", json_kind(v));
        return;
    }
    int i = 0;
    out->v = xcalloc((unsigned long)cJSON_GetArraySize(v), sizeof *out->v);
    for (const cJSON *item = v->child; item; item = item->next, i++) {
        char at[600];
        pointer_of(at, f->name, i);
        if (string_ok(f, item, at, p)) out->v[out->n++] = xstrdup(item->valuestring);
    }
}

static void take(struct spec *s, const struct field *f, const cJSON *v, struct problems *p)
{
    char ptr[600];
    void *m = member(s, f);
    double d = 0;
    bool number = json_number(v, &d);
    pointer_of(ptr, f->name, -1);
    bool optional = f->def && strcmp(f->def, "null") == 0;
    if (cJSON_IsNull(v) && optional) return;
    switch (f->type) {
    case FIELD_INT:
        if (!number || d != floor(d)) problems_add(p, ptr, "wrong_type", "expected a whole number, got %s", number ? "a fraction" : json_kind(v));
        else if (d < f->min || d > f->max)
            problems_add(p, ptr, "out_of_range", "expected %.0f to %.0f%s%s, got %.0f", f->min, f->max, *f->unit ? " " : "", f->unit, d);
        else *(int64_t *)m = (int64_t)d;
        break;
    case FIELD_REAL:
        if (!number) problems_add(p, ptr, "wrong_type", "expected a number, got %s", json_kind(v));
        else if (d < f->min || d > f->max) {
            char least[32], most[32], got[32];      /* exact: 0.999999999 is not 1 */
            number_text(least, f->min);
            number_text(most, f->max);
            number_text(got, d);
            problems_add(p, ptr, "out_of_range", "expected %s to %s, got %s", least, most, got);
        }
        else *(double *)m = d;
        break;
    case FIELD_BOOL:
        if (!cJSON_IsBool(v)) problems_add(p, ptr, "wrong_type", "expected true or false, got %s", json_kind(v));
        else *(bool *)m = cJSON_IsTrue(v);
        break;
    case FIELD_ENUM:
        if (!cJSON_IsString(v) || !is_choice(f, v->valuestring))
            problems_add(p, ptr, "out_of_range", "expected one of %s, got %.60s", f->choices, cJSON_IsString(v) ? v->valuestring : json_kind(v));
        else *(char **)m = xstrdup(v->valuestring);
        break;
    case FIELD_STRING: case FIELD_PATH:
        if (string_ok(f, v, ptr, p)) *(char **)m = xstrdup(v->valuestring);
        break;
    case FIELD_STRINGS: case FIELD_PATHS:
        take_strings(m, f, v, ptr, p);
        break;
    case FIELD_OBJECT:
        if (!cJSON_IsObject(v)) problems_add(p, ptr, "wrong_type", "expected an object, got %s", json_kind(v));
        else *(cJSON **)m = cJSON_Duplicate(v, true);
        break;
    }
}

static void all_strings(const cJSON *object, const char *name, struct problems *p)
{
    for (const cJSON *v = object ? object->child : NULL; v; v = v->next)
        if (!cJSON_IsString(v)) {
            char ptr[600];
            pointer_of(ptr, name, -1);
            problems_add(p, ptr, "wrong_type", "expected every value to be a string, \"%.60s\" is %s", v->string, json_kind(v));
        }
}

/* What a single row cannot say: relations between fields. What needs the model is the plan's to check. */
static void check_relations(const struct spec *s, struct problems *p)
{
    int64_t sp = s->sequence_parallel_size, u = s->ulysses_size, r = s->ring_size, n = s->nproc_per_node;
    all_strings(s->labels, "labels", p);
    all_strings(s->columns, "columns", p);
    if (s->dataset.n == 0) problems_add(p, "/dataset", "required", "expected at least one file or folder");
    if (s->target_modules.n == 0 && strcmp(s->tuner_type, "lora") == 0)
        problems_add(p, "/target_modules", "required", "expected at least one layer name, a regular expression or all-linear");
    if (u > 0 && r > 0 && sp > 0 && u * r != sp)
        problems_add(p, "/sequence_parallel_size", "conflict", "expected ulysses_size x ring_size = %lld, got %lld", (long long)(u * r), (long long)sp);
    int64_t width = sp > 0 ? sp : (u > 0 ? u : 1) * (r > 0 ? r : 1);
    if (n % width != 0)
        problems_add(p, "/nproc_per_node", "conflict", "expected a multiple of the sequence-parallel size %lld, got %lld", (long long)width, (long long)n);
    if (u > 0 && width % u != 0)
        problems_add(p, "/ulysses_size", "conflict", "expected a divisor of sequence_parallel_size %lld, got %lld", (long long)width, (long long)u);
    if (r > 0 && width % r != 0)
        problems_add(p, "/ring_size", "conflict", "expected a divisor of sequence_parallel_size %lld, got %lld", (long long)width, (long long)r);
    if (strcmp(s->sequence_parallel_method, "ulysses") == 0 && r > 1)
        problems_add(p, "/ring_size", "conflict", "expected 1 with sequence_parallel_method ulysses, got %lld", (long long)r);
    if (strcmp(s->sequence_parallel_method, "ring") == 0 && u > 1)
        problems_add(p, "/ulysses_size", "conflict", "expected 1 with sequence_parallel_method ring, got %lld", (long long)u);
    if (s->max_length % width != 0)
        problems_add(p, "/max_length", "conflict", "expected a multiple of the sequence-parallel size %lld, got %lld", (long long)width, (long long)s->max_length);
    if (s->max_steps == 0 && s->num_train_epochs <= 0)
        problems_add(p, "/max_steps", "conflict", "expected max_steps or num_train_epochs above 0");
    slurm_check(s, p);
    if (s->use_galore && strcmp(s->tuner_type, "full") != 0)
        problems_add(p, "/use_galore", "conflict", "expected tuner_type full: GaLore projects gradients of whole weights");
    if (s->zero_offload_gradients && s->use_galore)
        problems_add(p, "/zero_offload_gradients", "conflict", "expected false with use_galore: GaLore projects whole gradients, on the device");
    else if (s->zero_offload_gradients && s->zero_stage < 2)
        problems_add(p, "/zero_offload_gradients", "conflict", "expected zero_stage 2 or 3, which cut gradients into shards, got %lld", (long long)s->zero_stage);
}

static void set_defaults(struct spec *s)
{
    for (int i = 0; i < n_spec_fields; i++) {
        const struct field *f = &spec_fields[i];
        if (f->def == NULL) continue;
        cJSON *v = cJSON_Parse(f->def);
        struct problems none = { 0 };
        take(s, f, v, &none);
        problems_release(&none);
        cJSON_Delete(v);
    }
}

static void drop(struct spec *s, const struct field *f)
{
    void *m = member(s, f);
    switch (f->type) {
    case FIELD_STRING: case FIELD_PATH: case FIELD_ENUM:
        free(*(char **)m);
        *(char **)m = NULL;
        break;
    case FIELD_STRINGS: case FIELD_PATHS: {
        struct strlist *l = m;
        for (int i = 0; i < l->n; i++) free(l->v[i]);
        free(l->v);
        *l = (struct strlist){ 0 };
        break;
    }
    case FIELD_OBJECT:
        cJSON_Delete(*(cJSON **)m);
        *(cJSON **)m = NULL;
        break;
    default: break;
    }
}

int spec_from_json(struct spec *s, const cJSON *json, struct problems *p)
{
    int before = p->n;
    *s = (struct spec){ 0 };
    if (!cJSON_IsObject(json)) {
        problems_add(p, "", "wrong_type", "expected a JSON object, got %s", json_kind(json));
        return E_INVALID;
    }
    set_defaults(s);
    for (const cJSON *v = json->child; v; v = v->next) {
        const struct field *f = spec_field(v->string);
        if (f) {
            if (!cJSON_IsNull(v)) drop(s, f);
            take(s, f, v, p);
            continue;
        }
        char ptr[600];
        pointer_of(ptr, v->string, -1);
        const char *now = NULL;
        for (int i = 0; i < n_spec_fields && !now; i++) {
            struct field probe = spec_fields[i];
            probe.choices = probe.aliases;
            if (is_choice(&probe, v->string)) now = probe.name;
        }
        if (now) problems_add(p, ptr, "unknown_field", "unknown field; it is called %s here", now);
        else problems_add(p, ptr, "unknown_field", "unknown field; `ringmaster schema` lists all fields");
    }
    for (int i = 0; i < n_spec_fields; i++)
        if (spec_fields[i].def == NULL && json_get(json, spec_fields[i].name) == NULL) {
            char ptr[600];
            pointer_of(ptr, spec_fields[i].name, -1);
            problems_add(p, ptr, "required", "this field is required: %s", spec_fields[i].help);
        }
    if (p->n == before) check_relations(s, p);
    if (p->n == before) return OK;
    spec_release(s);
    return E_INVALID;
}

int spec_parse(struct spec *s, const char *text, size_t len, struct problems *p)
{
    struct error err;
    cJSON *json;
    *s = (struct spec){ 0 };
    if (json_parse(&json, text, len, &json_limits_request, &err) != OK) {
        problems_add(p, "", "not_json", "%s", err.text);
        return E_INVALID;
    }
    int rc = spec_from_json(s, json, p);
    cJSON_Delete(json);
    return rc;
}

/* "dir/x" for a relative x; dir is the folder `of` lies in, made absolute where that is possible. */
static void anchor(char **path, const char *of)
{
    if (*path == NULL || **path == '/') return;
    char *file = realpath(of, NULL);
    const char *base = file ? file : of, *slash = strrchr(base, '/');
    char *joined = slash ? xasprintf("%.*s/%s", (int)(slash - base), base, *path) : xstrdup(*path);
    free(*path);
    *path = joined;
    free(file);
}

static void anchor_paths(struct spec *s, const char *of)
{
    for (int i = 0; i < n_spec_fields; i++) {
        const struct field *f = &spec_fields[i];
        if (f->type == FIELD_PATH) anchor(member(s, f), of);
        if (f->type != FIELD_PATHS) continue;
        struct strlist *list = member(s, f);
        for (int k = 0; k < list->n; k++) anchor(&list->v[k], of);
    }
}

int spec_read(struct spec *s, const char *path, struct problems *p)
{
    struct error err;
    char *text;
    size_t len;
    *s = (struct spec){ 0 };
    if (file_read(path, SPEC_MAX_BYTES, &text, &len, &err) != OK) {
        problems_add(p, "", "unreadable", "%s", err.text);
        return E_INVALID;
    }
    int rc = spec_parse(s, text, len, p);
    free(text);
    if (rc == OK) anchor_paths(s, path);
    return rc;
}

void spec_release(struct spec *s)
{
    for (int i = 0; i < n_spec_fields; i++) drop(s, &spec_fields[i]);
}

cJSON *spec_json(const struct spec *s)
{
    cJSON *o = cJSON_CreateObject();
    for (int i = 0; i < n_spec_fields; i++) {
        const struct field *f = &spec_fields[i];
        const void *m = member(s, f);
        switch (f->type) {
        case FIELD_INT: json_add_int(o, f->name, *(const int64_t *)m); break;
        case FIELD_REAL: json_add_num(o, f->name, *(const double *)m); break;
        case FIELD_BOOL: (void)cJSON_AddBoolToObject(o, f->name, *(const bool *)m); break;
        case FIELD_STRING: case FIELD_PATH: case FIELD_ENUM: json_add_str(o, f->name, *(char *const *)m); break;
        case FIELD_STRINGS: case FIELD_PATHS: {
            const struct strlist *l = m;
            (void)cJSON_AddItemToObject(o, f->name, cJSON_CreateStringArray((const char *const *)l->v, l->n));
            break;
        }
        case FIELD_OBJECT: {
            const cJSON *v = *(cJSON *const *)m;
            (void)cJSON_AddItemToObject(o, f->name, v ? cJSON_Duplicate(v, true) : cJSON_CreateNull());
            break;
        }
        }
    }
    return o;
}

char *spec_line(const struct spec *s)
{
    cJSON *o = spec_json(s);
    char *text = json_line(o);
    cJSON_Delete(o);
    return text;
}

static cJSON *schema_type(const char *type, bool nullable)
{
    if (!nullable) return cJSON_CreateString(type);
    const char *both[] = { type, "null" };
    return cJSON_CreateStringArray(both, 2);
}

cJSON *spec_schema(void)
{
    static const char *const types[] = { [FIELD_INT] = "integer", [FIELD_REAL] = "number", [FIELD_BOOL] = "boolean", [FIELD_STRING] = "string",
        [FIELD_PATH] = "string", [FIELD_ENUM] = "string", [FIELD_OBJECT] = "object" };
    cJSON *root = cJSON_CreateObject(), *props = cJSON_CreateObject(), *required = cJSON_CreateArray();
    json_add_str(root, "$schema", "https://json-schema.org/draft/2020-12/schema");
    json_add_str(root, "title", "Ringmaster job spec");
    json_add_str(root, "type", "object");
    (void)cJSON_AddFalseToObject(root, "additionalProperties");
    for (int i = 0; i < n_spec_fields; i++) {
        const struct field *f = &spec_fields[i];
        cJSON *o = cJSON_CreateObject();
        bool nullable = f->def && strcmp(f->def, "null") == 0;
        json_add_str(o, "description", f->help);
        if (f->type == FIELD_STRINGS || f->type == FIELD_PATHS) {
            cJSON *any = cJSON_AddArrayToObject(o, "anyOf"), *one = cJSON_CreateObject(), *many = cJSON_CreateObject(), *item = cJSON_CreateObject();
            json_add_str(item, "type", "string");
            json_add_int(item, "maxLength", (int64_t)f->max);
            json_add_str(many, "type", "array");
            (void)cJSON_AddItemToObject(many, "items", item);
            json_add_str(one, "type", "string");
            json_add_int(one, "maxLength", (int64_t)f->max);
            (void)cJSON_AddItemToArray(any, many);
            (void)cJSON_AddItemToArray(any, one);
        } else (void)cJSON_AddItemToObject(o, "type", schema_type(types[f->type], nullable));
        if (f->type == FIELD_INT || f->type == FIELD_REAL) {
            json_add_num(o, "minimum", f->min);
            json_add_num(o, "maximum", f->max);
        }
        if (f->type == FIELD_STRING || f->type == FIELD_PATH) json_add_int(o, "maxLength", (int64_t)f->max);
        if (f->type == FIELD_ENUM) {
            cJSON *list = cJSON_AddArrayToObject(o, "enum");
            for (const char *c = f->choices; *c;) {
                size_t len = strcspn(c, "|");
                char word[64];
                (void)snprintf(word, sizeof word, "%.*s", (int)len, c);
                (void)cJSON_AddItemToArray(list, cJSON_CreateString(word));
                c += len + (c[len] == '|');
            }
        }
        if (f->def) (void)cJSON_AddItemToObject(o, "default", cJSON_Parse(f->def));
        else (void)cJSON_AddItemToArray(required, cJSON_CreateString(f->name));
        if (*f->unit) json_add_str(o, "x-unit", f->unit);
        json_add_str(o, "x-group", f->group);
        if (f->type == FIELD_PATH || f->type == FIELD_PATHS) (void)cJSON_AddTrueToObject(o, "x-path");
        json_add_int(o, "x-order", i);
        json_add_str(o, "x-since", f->since);
        (void)cJSON_AddItemToObject(props, f->name, o);
    }
    (void)cJSON_AddItemToObject(root, "properties", props);
    (void)cJSON_AddItemToObject(root, "required", required);
    return root;
}
