/* import.c - how any importer turns flags into a spec and an honest report (see import.h). */
#include "api/import.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/import_rules.h"

bool import_one_of(const char *word, const char *list)
{
    size_t n = strlen(word);
    for (const char *p = list; p && *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && strncasecmp(p, word, n) == 0) return true;
        p += len + (p[len] == '|');
    }
    return false;
}

const char *import_text(const struct flag *f) { return f->n > 0 ? f->value[0] : ""; }

bool import_true(const struct flag *f) { return f->n == 0 || import_one_of(f->value[0], "true|1|yes|on"); }

void import_report(struct import *im, const struct flag *f, const char *status, const char *field, const char *fmt, ...)
{
    char why[600], value[400] = "";
    size_t used = 0;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    for (int i = 0; i < f->n && used < sizeof value - 1; i++) {
        int n = snprintf(value + used, sizeof value - used, "%s%s", i ? " " : "", f->value[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    utf8_scrub(value);
    utf8_scrub(why);
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "flag", f->shown);
    json_add_str(o, "value", value);
    json_add_str(o, "status", status);
    json_add_str(o, "why", why);
    if (field) json_add_str(o, "field", field);
    (void)cJSON_AddItemToArray(im->flags, o);
    if (strcmp(status, "unsupported") == 0) im->unsupported = true;
}

void import_set(struct import *im, const char *field, cJSON *value)
{
    cJSON_DeleteItemFromObjectCaseSensitive(im->spec, field);
    (void)cJSON_AddItemToObject(im->spec, field, value);
}

void import_default(struct import *im, const char *field, cJSON *value, const char *why)
{
    if (json_get(im->spec, field)) { cJSON_Delete(value); return; }
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "field", field);
    (void)cJSON_AddItemToObject(o, "value", cJSON_Duplicate(value, true));
    json_add_str(o, "why", why);
    (void)cJSON_AddItemToArray(im->defaults, o);
    import_set(im, field, value);
}

/* 1e-4, .5, 1_000 are numbers to Python. */
static bool number_of(const char *s, double *out)
{
    char buf[64], *end;
    size_t n = 0;
    for (; *s && n < sizeof buf - 1; s++)
        if (*s != '_') buf[n++] = *s;
    buf[n] = '\0';
    errno = 0;
    *out = strtod(buf, &end);
    return n > 0 && *end == '\0' && isfinite(*out) && strpbrk(buf, "xXpP") == NULL;
}

static cJSON *number(double v)
{
    cJSON *o = cJSON_CreateObject();
    if (v == floor(v) && fabs(v) < 9e15) json_add_int(o, "v", (int64_t)v);
    else json_add_num(o, "v", v);
    cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(o, "v");
    free(item->string);
    item->string = NULL;
    cJSON_Delete(o);
    return item;
}

static cJSON *words(const struct flag *f)
{
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < f->n; i++) {
        cJSON *inner = NULL;        /* '["a","b"]' is a list too */
        if (f->value[i][0] == '[' && json_parse(&inner, f->value[i], strlen(f->value[i]), &json_limits_request, NULL) == OK) {
            while (inner->child) (void)cJSON_AddItemToArray(list, cJSON_DetachItemViaPointer(inner, inner->child));
            cJSON_Delete(inner);
            continue;
        }
        (void)cJSON_AddItemToArray(list, cJSON_CreateString(f->value[i]));
    }
    return list;
}

cJSON *import_value(struct import *im, const struct flag *f, const struct field *to)
{
    double d;
    cJSON *v = NULL;
    const char *s = import_text(f);
    switch (to->type) {
    case FIELD_INT: case FIELD_REAL:
        if (f->n == 1 && number_of(s, &d)) return number(d);
        import_report(im, f, "unsupported", to->name, "expected a number");
        return NULL;
    case FIELD_BOOL:
        if (f->n == 0 || import_one_of(s, "true|1|yes|on")) return cJSON_CreateTrue();
        if (import_one_of(s, "false|0|no|off")) return cJSON_CreateFalse();
        import_report(im, f, "unsupported", to->name, "expected true or false");
        return NULL;
    case FIELD_STRINGS: case FIELD_PATHS: return words(f);
    case FIELD_OBJECT:
        if (f->n == 1 && json_parse(&v, s, strlen(s), &json_limits_request, NULL) == OK && cJSON_IsObject(v)) return v;
        cJSON_Delete(v);
        import_report(im, f, "unsupported", to->name, "expected a JSON object");
        return NULL;
    default:
        if (f->n == 1) return cJSON_CreateString(s);
        import_report(im, f, "unsupported", to->name, "expected one value, got %d", f->n);
        return NULL;
    }
}

static bool hub_name(const char *s)
{
    const char *slash = strchr(s, '/');
    return slash && slash != s && s[0] != '.' && s[0] != '~' && s[0] != '/' && strchr(slash + 1, '/') == NULL && strstr(s, ".json") == NULL && strstr(s, ".txt") == NULL
        && strstr(s, ".csv") == NULL;
}

static void keep(struct import *im, const struct flag *f, const struct field *to, const char *why)
{
    bool renamed = strcmp(to->name, f->name) != 0;
    cJSON *v = import_value(im, f, to);
    char text[200];
    if (v == NULL) return;
    import_set(im, to->name, v);
    bool hub = (strcmp(to->name, "model") == 0 || strcmp(to->name, "dataset") == 0) && hub_name(import_text(f));
    if (hub) (void)snprintf(text, sizeof text, "%s%sa hub name is not downloaded: put the local folder or file here if there is none of this name", why ? why : "", why ? "; " : "");
    else (void)snprintf(text, sizeof text, "%s", why ? why : renamed ? "called so here" : "");
    import_report(im, f, renamed ? "translated" : "kept", to->name, "%s", text);
}

static const struct field *by_alias(const char *name)
{
    for (int i = 0; i < n_spec_fields; i++)
        if (import_one_of(name, spec_fields[i].aliases)) return &spec_fields[i];
    return NULL;
}

void import_begin(struct import *im, const struct rule *rules, int n)
{
    *im = (struct import){ .rules = rules, .n_rules = n, .spec = cJSON_CreateObject(), .flags = cJSON_CreateArray(), .defaults = cJSON_CreateArray() };
}

void import_flag(struct import *im, const struct flag *f)
{
    if (f->n == 1 && import_one_of(f->value[0], "none|null") && !(spec_field(f->name) && spec_field(f->name)->type == FIELD_STRING)) {
        import_report(im, f, "ignored", NULL, "no value: the default is taken");
        return;
    }
    for (int i = 0; i < im->n_rules; i++) {
        const struct rule *r = &im->rules[i];
        if (!import_one_of(f->name, r->names)) continue;
        switch (r->kind) {
        case RULE_KEEP: keep(im, f, spec_field(f->name), r->why); break;
        case RULE_RENAME: keep(im, f, spec_field(r->arg), r->why); break;
        case RULE_IGNORE: import_report(im, f, "ignored", NULL, "%s", r->why); break;
        case RULE_UNSUPPORTED: import_report(im, f, "unsupported", NULL, "%s", r->why); break;
        case RULE_UNLESS: {
            bool harmless = f->n > 0 ? import_one_of(f->value[0], r->arg) : import_one_of("true", r->arg);
            import_report(im, f, harmless ? "ignored" : "unsupported", NULL, "%s", harmless ? "as it is here" : r->why);
            break;
        }
        case RULE_CALL: r->call(im, f); break;
        }
        return;
    }
    const struct field *to = spec_field(f->name);
    if (to == NULL) to = by_alias(f->name);
    if (to) keep(im, f, to, NULL);
    else import_report(im, f, "unsupported", NULL, "unknown flag: nothing here is called so");
}

void import_end(struct import *im, cJSON **out)
{
    struct spec s;
    struct problems p = { 0 };
    cJSON *o = *out = cJSON_CreateObject(), *list;
    if (spec_from_json(&s, im->spec, &p) == OK) spec_release(&s);
    for (int i = 0; i < p.n; i++) {
        const char *field = p.v[i].pointer + (p.v[i].pointer[0] == '/');
        size_t len = strcspn(field, "/");
        for (cJSON *f = im->flags->child; f; f = f->next) {
            const char *name = json_str(f, "field");
            if (name == NULL || strlen(name) != len || strncmp(name, field, len) != 0) continue;
            (void)cJSON_SetValuestring(json_get(f, "status"), "unsupported");
            cJSON_ReplaceItemInObjectCaseSensitive(f, "why", cJSON_CreateString(p.v[i].message));
        }
    }
    list = problems_json(&p);
    (void)cJSON_AddItemToObject(o, "spec", im->spec);
    (void)cJSON_AddBoolToObject(o, "supported", !im->unsupported && p.n == 0);
    (void)cJSON_AddItemToObject(o, "flags", im->flags);
    (void)cJSON_AddItemToObject(o, "defaults", im->defaults);
    (void)cJSON_AddItemToObject(o, "problems", list);
    problems_release(&p);
    *im = (struct import){ 0 };
}

void import_set_text(struct import *im, const char *field, const char *v) { import_set(im, field, cJSON_CreateString(v)); }

void import_set_int(struct import *im, const char *field, int64_t v)
{
    cJSON_DeleteItemFromObjectCaseSensitive(im->spec, field);
    json_add_int(im->spec, field, v);
}

void import_take_strategy(struct import *im, const struct flag *f)
{
    const char *v = import_text(f), *field = strncmp(f->name, "save", 4) == 0 ? "save_steps" : "eval_steps";
    if (import_one_of(v, "steps")) import_report(im, f, "ignored", NULL, "%s says how often", field);
    else if (import_one_of(v, "no")) {
        import_set_int(im, field, 0);
        import_report(im, f, "translated", field, "%s 0", field);
    } else import_report(im, f, "unsupported", field, "only by steps: say %s", field);
}

void import_take_steps(struct import *im, const struct flag *f)
{
    cJSON *v = import_value(im, f, spec_field("max_steps"));
    double n = 0;
    if (v == NULL) return;
    (void)json_number(v, &n);
    cJSON_Delete(v);
    if (n <= 0) { import_report(im, f, "ignored", NULL, "no limit, as here"); return; }
    import_set_int(im, "max_steps", (int64_t)n);
    import_report(im, f, "kept", "max_steps", "%s", "");
}
