/* template.c - which chat template speaks for a model folder, and what it is told (template.h).
 *
 * As transformers does it: chat_template.jinja wins over tokenizer_config.json's chat_template; that is a text or a list of named texts, of
 * which "tool_use" serves conversations with tools; the special tokens of tokenizer_config.json are variables. Folders that bring no
 * template get a built-in one, written in the same language. */
#include "worker/data/template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/data/jinja.h"

#define TEMPLATE_MAX ((size_t)4 << 20)
#define CONFIG_MAX ((size_t)64 << 20)

struct chat_template {
    struct jinja *plain, *tools;        /* tools: NULL unless the model has one of its own for them */
    struct pool pool;                   /* of special */
    struct value special;               /* V_DICT: bos_token, eos_token … */
    bool no_tools;                      /* built-in ones know nothing of tools */
    const char *name;
    uint64_t hash;
    char *appended;                     /* the generation prompt, where the template writes it unasked */
    size_t n_appended;
};

static const struct { const char *name, *mark, *source; } built_in[] = {
    { "llama3", "<|start_header_id|>",
      "{{ bos_token | default('<|begin_of_text|>') }}"
      "{% for message in messages %}"
      "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}"
      "{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}" },
    { "chatml", "",
      "{% for message in messages %}"
      "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
      "{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}" },
};

void rendered_release(struct rendered *r)
{
    buf_release(&r->text);
    free(r->generated);
    *r = (struct rendered){ 0 };
}

static int read_json(struct value *v, struct pool *pool, const char *path, struct error *err)
{
    static const struct json_limits limits = { CONFIG_MAX, 200, 4000000 };
    char *text;
    size_t len;
    int rc = file_read(path, CONFIG_MAX, &text, &len, err);
    if (rc != OK) return rc;
    rc = value_parse(v, pool, text, len, &limits, err);
    free(text);
    if (rc == OK && v->type != V_DICT) rc = error_set(err, E_INVALID, "expected an object, found %s", value_kind(*v));
    return rc == OK ? OK : error_prefix(err, "%s", path);
}

/* "bos_token": "x" or {"content": "x"} */
static void take_special(struct chat_template *t, struct value config)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token", "audio_token", "video_token" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct value v = value_get(config, names[i]);
        if (v.type == V_DICT) v = value_get(v, "content");
        if (v.type != V_STR || dict_find(t->special.d, names[i])) continue;
        dict_set(&t->pool, t->special.d, v_cstr(names[i]), v_str(pool_strndup(&t->pool, v.s.p, v.s.n), v.s.n));
    }
}

static int compile(struct jinja **out, struct chat_template *t, const char *source, size_t len, const char *where, struct error *err)
{
    int rc = jinja_compile(out, source, len, err);
    for (size_t i = 0; i < len; i++) t->hash = (t->hash ^ (unsigned char)source[i]) * 1099511628211u;
    return rc == OK ? OK : error_prefix(err, "%s", where);
}

static int compile_file(struct chat_template *t, const char *path, struct error *err)
{
    char *text;
    size_t len;
    int rc = file_read(path, TEMPLATE_MAX, &text, &len, err);
    if (rc != OK) return rc;
    rc = compile(&t->plain, t, text, len, path, err);
    free(text);
    return rc;
}

/* A text, or [{name, template}, …] with a "default". */
static int compile_config(struct chat_template *t, struct value v, const char *path, struct error *err)
{
    char *where = xasprintf("%s: chat_template", path);
    int rc = OK;
    if (v.type == V_STR) rc = compile(&t->plain, t, v.s.p, v.s.n, where, err);
    else if (v.type == V_LIST) {
        for (size_t i = 0; i < v.l->n && rc == OK; i++) {
            struct value name = value_get(v.l->v[i], "name"), text = value_get(v.l->v[i], "template");
            struct jinja **slot = value_is_str(name, "default") ? &t->plain : value_is_str(name, "tool_use") ? &t->tools : NULL;
            if (slot == NULL || *slot) continue;
            rc = text.type == V_STR ? compile(slot, t, text.s.p, text.s.n, where, err) : error_set(err, E_INVALID, "%s[%zu]: template is not a string", where, i);
        }
        if (rc == OK && t->plain == NULL) rc = error_set(err, E_INVALID, "%s: none of its templates is named \"default\"", where);
    } else rc = error_set(err, E_INVALID, "%s: expected a string or an array, found %s", where, value_kind(v));
    free(where);
    return rc;
}

/* Does add_generation_prompt make no difference to a finished conversation? Then what is rendered of no messages at all is what is appended. */
static void probe(struct chat_template *t)
{
    struct pool pool = { 0 };
    struct value talk = v_list(&pool), none = v_list(&pool);
    struct rendered asked = { 0 }, not_asked = { 0 }, bare = { 0 };
    for (int i = 0; i < 2; i++) {
        struct value m = v_dict(&pool);
        dict_set(&pool, m.d, v_cstr("role"), v_cstr(i ? "assistant" : "user"));
        dict_set(&pool, m.d, v_cstr("content"), v_cstr(i ? "answer" : "question"));
        list_add(&pool, talk.l, m);
    }
    if (template_render(t, talk, v_undefined(), true, v_undefined(), &asked, NULL) == OK && template_render(t, talk, v_undefined(), false, v_undefined(), &not_asked, NULL) == OK
        && template_render(t, none, v_undefined(), false, v_undefined(), &bare, NULL) == OK && strcmp(asked.text.p, not_asked.text.p) == 0
        && bare.text.n > 0 && bare.text.n < asked.text.n && strcmp(asked.text.p + asked.text.n - bare.text.n, bare.text.p) == 0) {
        t->appended = xstrndup(bare.text.p, bare.text.n);
        t->n_appended = bare.text.n;
    }
    rendered_release(&asked);
    rendered_release(&not_asked);
    rendered_release(&bare);
    pool_release(&pool);
}

static struct chat_template *fresh(void)
{
    struct chat_template *t = xcalloc(1, sizeof *t);
    t->special = v_dict(&t->pool);
    t->hash = 14695981039346656037u;
    t->name = "auto";
    return t;
}

int template_open_file(struct chat_template **out, const char *path, struct error *err)
{
    struct chat_template *t = fresh();
    int rc = compile_file(t, path, err);
    *out = rc == OK ? t : NULL;
    if (rc != OK) template_free(t);
    else probe(t);
    return rc;
}

int template_open(struct chat_template **out, const char *model_dir, const char *name, const struct tokenizer *tok, struct error *err)
{
    struct chat_template *t = fresh();
    struct pool pool = { 0 };
    struct value config = v_undefined(), map = v_undefined();
    char *config_path = xasprintf("%s/tokenizer_config.json", model_dir), *map_path = xasprintf("%s/special_tokens_map.json", model_dir);
    char *jinja_path = xasprintf("%s/chat_template.jinja", model_dir);
    int rc = OK;
    *out = NULL;
    if (access(config_path, F_OK) == 0) rc = read_json(&config, &pool, config_path, err);
    if (rc == OK && access(map_path, F_OK) == 0) rc = read_json(&map, &pool, map_path, err);
    if (rc != OK) goto out;
    take_special(t, config);
    take_special(t, map);
    if (strcmp(name, "auto") == 0) {
        struct value own = value_get(config, "chat_template");
        if (access(jinja_path, F_OK) == 0) rc = compile_file(t, jinja_path, err);
        else if (own.type != V_UNDEFINED && own.type != V_NONE) rc = compile_config(t, own, config_path, err);
        if (rc != OK || t->plain) goto out;
        name = tok && tokenizer_id(tok, built_in[0].mark) >= 0 ? built_in[0].name : "chatml";
    }
    for (size_t i = 0; i < sizeof built_in / sizeof built_in[0]; i++)
        if (strcmp(name, built_in[i].name) == 0) {
            t->name = built_in[i].name;
            t->no_tools = true;
            rc = compile(&t->plain, t, built_in[i].source, strlen(built_in[i].source), name, err);
        }
    if (rc == OK && t->plain == NULL) rc = error_set(err, E_INVALID, "template \"%s\" is not known; known are auto, chatml, llama3, none", name);
out:
    free(config_path);
    free(map_path);
    free(jinja_path);
    pool_release(&pool);
    if (rc != OK) { template_free(t); return rc; }
    for (size_t i = 0; i < t->special.d->n; i++)
        for (size_t k = 0; k < t->special.d->v[i].s.n; k++) t->hash = (t->hash ^ (unsigned char)t->special.d->v[i].s.p[k]) * 1099511628211u;
    probe(t);
    *out = t;
    return OK;
}

void template_free(struct chat_template *t)
{
    if (t == NULL) return;
    jinja_free(t->plain);
    jinja_free(t->tools);
    free(t->appended);
    pool_release(&t->pool);
    free(t);
}

int template_render(const struct chat_template *t, struct value messages, struct value tools, bool add_generation_prompt,
                    struct value context, struct rendered *out, struct error *err)
{
    struct pool pool = { 0 };
    struct value vars = v_dict(&pool);
    bool has_tools = tools.type != V_UNDEFINED && tools.type != V_NONE;
    if (t->no_tools && has_tools && tools.type == V_LIST && tools.l->n)
        return error_set(err, E_UNSUPPORTED, "the built-in template \"%s\" knows no tools; the model folder needs a chat_template of its own", t->name);
    for (size_t i = 0; i < t->special.d->n; i++) dict_set(&pool, vars.d, t->special.d->k[i], t->special.d->v[i]);
    dict_set(&pool, vars.d, v_cstr("messages"), messages);
    dict_set(&pool, vars.d, v_cstr("tools"), has_tools ? tools : v_none());
    dict_set(&pool, vars.d, v_cstr("documents"), v_none());
    dict_set(&pool, vars.d, v_cstr("add_generation_prompt"), v_bool(add_generation_prompt));
    if (context.type == V_DICT)
        for (size_t i = 0; i < context.d->n; i++) dict_set(&pool, vars.d, context.d->k[i], context.d->v[i]);
    int rc = jinja_render(has_tools && t->tools ? t->tools : t->plain, vars, -1, &jinja_limits_default, out, err);
    pool_release(&pool);
    return rc == OK ? OK : error_prefix(err, "chat template");
}

uint64_t template_hash(const struct chat_template *t) { return t->hash; }
const char *template_appends(const struct chat_template *t, size_t *n) { *n = t->n_appended; return t->appended; }
const char *template_built_in(const struct chat_template *t) { return t->no_tools ? t->name : NULL; }
bool template_marks_generation(const struct chat_template *t) { return jinja_marks_generation(t->plain); }
