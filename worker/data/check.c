/* check.c - `ringmaster check PATH…`: would training take this? One line for each path: what it is, or what is wrong with it and where.
 *
 * What a path is shows in its name or, for .json, in its keys. Everything is read the way training reads it, to its end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "api/printable.h"
#include "worker/data/dataset.h"
#include "worker/data/template.h"
#include "worker/data/tokenize.h"
#include "worker/model/config.h"
#include "worker/model/safetensors.h"
#include "worker/verbs.h"

#define JSON_MAX ((size_t)512 << 20)

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static bool there(const char *dir, const char *name)
{
    char *path = xasprintf("%s/%s", dir, name);
    bool yes = access(path, F_OK) == 0;
    free(path);
    return yes;
}

static void add_part(char **summary, const char *part)
{
    char *both = *summary ? xasprintf("%s; %s", *summary, part) : xstrdup(part);
    free(*summary);
    *summary = both;
}

static int check_weights(const char *path, const char *stem, char **summary, struct error *err)
{
    struct safetensors *st = NULL;
    int rc = safetensors_open(&st, path, stem, err);
    if (rc != OK) return rc;
    double bytes = 0;
    int64_t n = safetensors_count(st), odd = 0;
    for (int64_t i = 0; i < n; i++) {
        bytes += (double)safetensors_at(st, i)->bytes;
        odd += safetensors_at(st, i)->dt == DTYPE_COUNT;
    }
    char *part = odd ? xasprintf("%lld tensors, %.3f GiB (%lld in types that cannot be trained)", (long long)n, bytes / 1073741824.0, (long long)odd)
                     : xasprintf("%lld tensors, %.3f GiB", (long long)n, bytes / 1073741824.0);
    add_part(summary, part);
    free(part);
    safetensors_close(st);
    return OK;
}

static int check_template(const char *path, bool folder, char **summary, struct error *err)
{
    struct chat_template *t = NULL;
    struct tokenizer *tok = NULL;
    if (folder && there(path, "tokenizer.json")) (void)tokenizer_open(&tok, path, NULL);        /* a built-in template's choice asks it */
    int rc = folder ? template_open(&t, path, "auto", tok, err) : template_open_file(&t, path, err);
    if (rc == OK && template_built_in(t)) {
        char *part = xasprintf("no chat template of its own, the built-in %s is used", template_built_in(t));
        add_part(summary, part);
        free(part);
    } else if (rc == OK) add_part(summary, "chat template");
    template_free(t);
    tokenizer_free(tok);
    return rc;
}

static int check_tokenizer(const char *path, int64_t vocab, char **summary, struct error *err)
{
    char *part;
    int rc = tokenizer_check(path, vocab, &part, err);
    if (rc == OK) add_part(summary, part);
    free(part);
    return rc;
}

static int check_dataset(const char *path, char **summary, struct error *err)
{
    struct dataset *d;
    char *one[] = { (char *)path };
    struct strlist list = { one, 1 };
    int64_t texts = 0, turns = 0, with_tools = 0, n;
    int rc = dataset_open(&d, &list, NULL, NULL, false, 0, err);
    if (rc != OK) return rc;
    n = dataset_count(d);
    for (int64_t i = 0; i < n && rc == OK; i++) {
        struct pool pool = { 0 };
        struct sample s;
        rc = dataset_sample(d, i, &pool, &s, err);
        if (rc == OK && s.is_text) texts++;
        else if (rc == OK) { turns += (int64_t)s.messages.l->n; with_tools += s.tools.type == V_LIST; }
        pool_release(&pool);
    }
    if (rc == OK) {
        char *part = texts == n ? xasprintf("dataset: %lld plain texts", (long long)n)
                                : xasprintf("dataset: %lld samples, %lld conversations with %lld messages, %lld with tools", (long long)n, (long long)(n - texts), (long long)turns, (long long)with_tools);
        add_part(summary, part);
        free(part);
    }
    dataset_close(d);
    return rc;
}

/* *vocab: entries of the model's vocabulary. */
static int check_config(const char *dir, int64_t *vocab, char **summary, struct error *err)
{
    struct model_config c;
    struct spec none = { 0 };
    memset(&c, 0, sizeof c);
    int rc = model_config_read(&c, dir, &none, err);
    if (rc != OK) return rc;
    char *part = xasprintf("model: %s, %lld layers, width %lld, %lld heads (%lld kv), vocabulary %lld", c.model_type, (long long)c.L, (long long)c.C, (long long)c.H, (long long)c.Hkv, (long long)c.V);
    *vocab = c.V;
    add_part(summary, part);
    free(part);
    model_config_release(&c);
    return OK;
}

static int check_adapter(const char *dir, char **summary, struct error *err)
{
    char *path = xasprintf("%s/adapter_config.json", dir);
    cJSON *json = NULL;
    int64_t rank = 0;
    int rc = json_parse_file(&json, path, &json_limits_request, err);
    if (rc == OK) {
        const char *type = json_str(json, "peft_type");
        if (type == NULL || strcmp(type, "LORA") != 0) rc = error_set(err, E_UNSUPPORTED, "%s: peft_type: expected LORA, found %s", path, type ? type : "none");
        else if (!json_int(json, "r", &rank) || rank < 1 || rank > 65536) rc = error_set(err, E_INVALID, "%s: r: expected the rank, a whole number from 1", path);
    }
    if (rc == OK) {
        char *part = xasprintf("adapter: LoRA of rank %lld", (long long)rank);
        add_part(summary, part);
        free(part);
    }
    cJSON_Delete(json);
    free(path);
    return rc == OK ? check_weights(dir, "adapter_model", summary, err) : rc;
}

static int check_folder(const char *path, char **summary, struct error *err)
{
    int rc = OK;
    bool any = false;
    int64_t vocab = INT64_MAX;
    if (there(path, "adapter_config.json") || there(path, "adapter_model.safetensors")) return check_adapter(path, summary, err);
    if (there(path, "config.json")) { any = true; rc = check_config(path, &vocab, summary, err); }
    if (rc == OK && (there(path, "model.safetensors") || there(path, "model.safetensors.index.json"))) { any = true; rc = check_weights(path, "model", summary, err); }
    if (rc == OK && there(path, "tokenizer.json")) { any = true; rc = check_tokenizer(path, vocab, summary, err); }
    if (rc == OK && (there(path, "chat_template.jinja") || there(path, "tokenizer_config.json"))) { any = true; rc = check_template(path, true, summary, err); }
    return any || rc != OK ? rc : check_dataset(path, summary, err);
}

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? xstrdup(".") : slash == path ? xstrdup("/") : xstrndup(path, (unsigned long)(slash - path));
}

/* A .json that is an object may be a tokenizer, an index or a configuration: its keys tell. */
static const char *kind_of_json(const char *path)
{
    char *text;
    size_t len;
    const char *kind = "dataset";
    if (file_read(path, JSON_MAX, &text, &len, NULL) != OK) return kind;
    const char *p = text + strspn(text, " \t\r\n");
    if (*p == '{') {
        if (memmem(text, len, "\"weight_map\"", 12)) kind = "index";
        else if (memmem(text, len, "\"peft_type\"", 11)) kind = "adapter";
        else if (memmem(text, len, "\"vocab\"", 7) || memmem(text, len, "\"pre_tokenizer\"", 15) || memmem(text, len, "\"added_tokens\"", 14)) kind = "tokenizer";
        else if (memmem(text, len, "\"model_type\"", 12) || memmem(text, len, "\"hidden_size\"", 13)) kind = "config";
    }
    free(text);
    return kind;
}

static int check_path(const char *path, char **summary, struct error *err)
{
    struct stat st;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (strchr(name, '#') && stat(path, &st) < 0) return check_dataset(path, summary, err);
    if (stat(path, &st) < 0) return error_set(err, E_NOTFOUND, "%s: no such file or folder", path);
    if (S_ISDIR(st.st_mode)) return check_folder(path, summary, err);
    if (!S_ISREG(st.st_mode)) return error_set(err, E_INVALID, "%s: not a regular file", path);
    if (ends_with(name, ".safetensors")) return check_weights(path, NULL, summary, err);
    if (ends_with(name, ".jinja") || ends_with(name, ".j2")) return check_template(path, false, summary, err);
    if (!ends_with(name, ".json")) return check_dataset(path, summary, err);
    char *dir = folder_of(path);
    int64_t vocab;
    int rc;
    const char *kind = strcmp(name, "config.json") == 0 ? "config" : strcmp(name, "adapter_config.json") == 0 ? "adapter"
        : strcmp(name, "tokenizer.json") == 0 ? "tokenizer" : ends_with(name, ".safetensors.index.json") ? "index" : kind_of_json(path);
    if (strcmp(kind, "index") == 0 && ends_with(name, ".safetensors.index.json")) {
        char *stem = xstrndup(name, strlen(name) - strlen(".safetensors.index.json"));
        rc = check_weights(dir, stem, summary, err);
        free(stem);
    } else if (strcmp(kind, "index") == 0) rc = error_set(err, E_INVALID, "%s: an index of weights has to be named NAME.safetensors.index.json", path);
    else if (strcmp(kind, "tokenizer") == 0) rc = check_tokenizer(path, INT64_MAX, summary, err);
    else if (strcmp(kind, "config") == 0 && strcmp(name, "config.json") == 0) rc = check_config(dir, &vocab, summary, err);
    else if (strcmp(kind, "adapter") == 0 && strcmp(name, "adapter_config.json") == 0) rc = check_adapter(dir, summary, err);
    else rc = check_dataset(path, summary, err);
    free(dir);
    return rc;
}

static void print_json(const char *path, bool ok, const char *text)
{
    cJSON *o = cJSON_CreateObject();
    char *name = printable(path, strlen(path), false);          /* a file's name need not be UTF-8 */
    json_add_str(o, "path", utf8_valid(path, strlen(path), NULL) ? path : name);
    (void)cJSON_AddBoolToObject(o, "ok", ok);
    json_add_str(o, ok ? "summary" : "problem", text ? text : "nothing to check");
    json_print(o);
    free(name);
}

int verb_check(int argc, char **argv)
{
    int worst = 0, first = argc > 1 && strcmp(argv[1], "--json") == 0 ? 2 : 1;
    bool json = first == 2 || (argc > 2 && strcmp(argv[argc - 1], "--json") == 0);
    int end = argc - (json && first == 1);
    if (end <= first) {
        (void)fputs("usage: ringmaster check PATH… [--json]\n"
                    "PATH: a model or adapter folder, .safetensors or its index, tokenizer.json, a template (.jinja), or a data set.\n", stderr);
        return 2;
    }
    for (int i = first; i < end; i++) {
        struct error err = { 0 };
        char *summary = NULL;
        int rc = check_path(argv[i], &summary, &err);
        if (json) print_json(argv[i], rc == OK, rc == OK ? summary : err.text);
        else if (rc == OK) print_line(stdout, "%s: %s", argv[i], summary ? summary : "nothing to check");
        else {
            (void)fflush(stdout);
            if (strstr(err.text, argv[i])) print_line(stderr, "ringmaster check: %s", err.text);
            else print_line(stderr, "ringmaster check: %s: %s", argv[i], err.text);
        }
        if (rc != OK) worst = rc == E_NOMEM ? 71 : rc == E_INTERNAL ? 70 : 2;
        free(summary);
    }
    return worst;
}
