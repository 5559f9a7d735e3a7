/* targets.c - see targets.h. A list matches whole name parts from the end ("q_proj", "self_attn.q_proj"); a single entry that holds
 * anything but name characters is a regular expression for the whole module name; "all-linear" is every linear but the head. */
#include "worker/model/targets.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool is_name(const char *s)
{
    for (; *s; s++) if (!isalnum((unsigned char)*s) && *s != '_' && *s != '.' && *s != '-') return false;
    return true;
}

int targets_init(struct targets *t, const struct spec *spec, struct error *err)
{
    *t = (struct targets){ .spec = spec };
    const struct strlist *list = &spec->target_modules;
    t->used = xcalloc((unsigned long)list->n + 1, sizeof *t->used);
    t->saved_used = xcalloc((unsigned long)spec->modules_to_save.n + 1, sizeof *t->saved_used);
    bool lora = spec->tuner_type && strcmp(spec->tuner_type, "lora") == 0;
    if (!lora) return OK;
    int rc = OK;
    if (list->n == 0) rc = error_set(err, E_INVALID, "target_modules is empty, expected module names, one regular expression or \"all-linear\"");
    for (int i = 0; i < list->n; i++) {
        if (strcmp(list->v[i], "all-linear") == 0) t->all_linear = t->used[i] = true;
        else if (strcmp(list->v[i], "lm_head") == 0 || strcmp(list->v[i], "embed_tokens") == 0)
            rc = error_set(err, E_UNSUPPORTED, "target_modules: %s cannot take an adapter; put it into modules_to_save", list->v[i]);
        else if (!is_name(list->v[i]) && list->n > 1)
            rc = error_set(err, E_INVALID, "target_modules: \"%.200s\" is a regular expression; expected to be the only entry", list->v[i]);
        else if (!is_name(list->v[i])) {
            char *whole = xasprintf("\\A(?:%s)\\z", list->v[i]);      /* PEFT asks for the whole name */
            rc = regex_open(&t->pattern, whole, strlen(whole), err);
            if (rc != OK) (void)error_prefix(err, "target_modules: \"%.200s\"", list->v[i]);
            else t->space = regex_space_new();
            free(whole);
        }
    }
    if (rc != OK) targets_release(t);
    return rc;
}

void targets_release(struct targets *t)
{
    free(t->used);
    free(t->saved_used);
    regex_free(t->pattern);
    regex_space_free(t->space);
    *t = (struct targets){ 0 };
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

bool targets_saved(struct targets *t, const char *module)
{
    const struct strlist *list = &t->spec->modules_to_save;
    bool hit = false;
    for (int i = 0; i < list->n; i++) {
        char *path = xstrdup(module);
        for (;;) {                                  /* the module, then the modules it is in */
            bool is = strcmp(list->v[i], "all-norm") == 0 ? ends_with(path, "norm")
                    : strcmp(list->v[i], "all-embedding") == 0 ? ends_with(path, "embed_tokens") : ends_with(path, list->v[i]);
            if (is) hit = t->saved_used[i] = true;
            char *dot = strrchr(path, '.');
            if (!dot) break;
            *dot = '\0';
        }
        free(path);
    }
    return hit;
}

int targets_match(struct targets *t, const char *module, bool *out, struct error *err)
{
    *out = false;
    if (targets_saved(t, module)) return OK;
    if (t->pattern) {
        struct regex_iter it = { 0 };
        size_t start, end;
        int rc = regex_next(t->pattern, t->space, module, strlen(module), &it, &start, &end, out, err);
        t->hits += *out;
        return rc == OK ? OK : error_prefix(err, "target_modules");
    }
    const struct strlist *list = &t->spec->target_modules;
    *out = t->all_linear;
    for (int i = 0; i < list->n; i++) {
        const char *name = list->v[i];
        size_t n = strlen(module), k = strlen(name);
        if (strcmp(module, name) == 0 || (n > k && ends_with(module, name) && module[n - k - 1] == '.')) *out = t->used[i] = true;
    }
    return OK;
}

int targets_all_used(const struct targets *t, struct error *err)
{
    const struct spec *s = t->spec;
    for (int i = 0; i < s->target_modules.n; i++)
        if (!t->used[i] && !t->pattern)
            return error_set(err, E_INVALID, "target_modules: no linear layer of the model is called \"%.200s\"; expected e.g. q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj", s->target_modules.v[i]);
    if (t->pattern && t->hits == 0) return error_set(err, E_INVALID, "target_modules: \"%.200s\" matches no linear layer of the model", s->target_modules.v[0]);
    for (int i = 0; i < s->modules_to_save.n; i++)
        if (!t->saved_used[i])
            return error_set(err, E_INVALID, "modules_to_save: no module of the model is called \"%.200s\"; expected e.g. embed_tokens, lm_head, norm", s->modules_to_save.v[i]);
    return OK;
}
