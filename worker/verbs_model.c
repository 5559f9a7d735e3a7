/* verbs_model.c - merge and sample: what a person does with a checkpoint afterwards.
 *
 * A checkpoint is a Hugging Face folder or a PEFT folder; the latter says itself what it was trained on and how. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/printable.h"
#include "worker/data/tokenizer.h"
#include "worker/model/merge.h"
#include "worker/model/sampler.h"
#include "worker/verbs.h"

static int complain(const struct error *err)
{
    print_line(stderr, "ringmaster: %s", err->text);
    return err->code == E_INVALID || err->code == E_UNSUPPORTED || err->code == E_NOTFOUND || err->code == E_LIMIT || err->code == E_CONFLICT ? 2 : 70;
}

struct option { const char *name; const char **value; };

/* "--name VALUE" or "--name=VALUE" into options, "--json" into *json, the rest into place[0..n_place). */
static int read_args(int argc, char **argv, const struct option *options, const char **place, int n_place, bool *json, const char *usage)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        const struct option *o = options;
        size_t len = strcspn(argv[i], "=");
        if (strncmp(argv[i], "--", 2) != 0) {
            if (n == n_place) break;
            place[n++] = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--json") == 0) { *json = true; continue; }
        while (o->name && (strlen(o->name) != len - 2 || strncmp(argv[i] + 2, o->name, len - 2) != 0)) o++;
        if (!o->name || (argv[i][len] != '=' && i + 1 == argc)) { n = -1; break; }
        *o->value = argv[i][len] == '=' ? argv[i] + len + 1 : argv[++i];
    }
    if (n == n_place) return OK;
    (void)fprintf(stderr, "usage: ringmaster %s\n", usage);
    return E_INVALID;
}

static bool read_number(const char *text, double min, double max, const char *name, double *out)
{
    char *end;
    if (!text) return true;
    *out = strtod(text, &end);
    if (end != text && !*end && *out >= min && *out <= max) return true;
    print_line(stderr, "ringmaster: --%s %s: expected a number from %g to %g", name, text, min, max);
    return false;
}

/* One more member; bytes that are no UTF-8 are spelled out, as people see them. */
static void add_text(cJSON *o, const char *name, const char *text)
{
    char *shown = printable(text, strlen(text), true);
    json_add_str(o, name, utf8_valid(text, strlen(text), NULL) ? text : shown);
    free(shown);
}

int verb_merge(int argc, char **argv)
{
    bool json = false;
    const char *base = NULL, *place[2];
    const struct option options[] = { { "base", &base }, { NULL, NULL } };
    struct error err = { 0 };
    if (read_args(argc, argv, options, place, 2, &json, "merge ADAPTER OUTPUT [--base MODEL] [--json]") != OK) return 2;
    if (merge_adapter(base, place[0], place[1], &err) != OK) return complain(&err);
    if (json) {
        cJSON *o = cJSON_CreateObject();
        add_text(o, "output", place[1]);
        json_print(o);
    } else print_line(stdout, "%s", place[1]);
    return 0;
}

/* --- sample --- */
struct sample {
    struct spec spec;
    struct model_config config;
    struct mesh mesh;
    const struct kernel_ops *ops;
    struct stream *stream;
    struct arena arenas[MEM_PLACES];
    void *memory[MEM_PLACES];
    int64_t bytes[MEM_PLACES];
    struct model *model;
    struct sampler *sampler;
    struct tokenizer *tokenizer;
    char *base;                 /* folder of config.json and weights */
    bool adapter;
};

/* The spec that means "this checkpoint, as it was trained", from its adapter_config.json if it has one. */
static int spec_of(struct sample *s, const char *dir, const char *base, struct error *err)
{
    char *path = xasprintf("%s/adapter_config.json", dir);
    cJSON *a = NULL, *j = cJSON_CreateObject();
    struct problems p = { 0 };
    int rc = OK;
    s->adapter = access(path, F_OK) == 0;
    if (s->adapter) rc = json_parse_file(&a, path, &json_limits_file, err);
    if (rc == OK && s->adapter && !base) base = json_str(a, "base_model_name_or_path");
    if (rc == OK && s->adapter && (!base || access(base, F_OK) != 0))
        rc = error_set(err, E_NOTFOUND, "%s: base_model_name_or_path %.300s is no folder here; give --base", path, base ? base : "(absent)");
    if (rc != OK) goto out;
    s->base = xstrdup(s->adapter ? base : dir);
    if ((rc = model_config_read(&s->config, s->base, NULL, err)) != OK) goto out;
    json_add_str(j, "model", s->base);
    json_add_str(j, "output_dir", ".");
    cJSON *data = cJSON_AddArrayToObject(j, "dataset");
    (void)cJSON_AddItemToArray(data, cJSON_CreateString("-"));
    json_add_str(j, "torch_dtype", s->config.stored_dtype == DT_BF16 || s->config.stored_dtype == DT_F16 ? "bfloat16" : "float32");
    json_add_str(j, "tuner_type", s->adapter ? "lora" : "full");
    if (s->adapter) {
        static const char *const same[] = { "lora_alpha", "use_rslora", "use_dora", "target_modules", "modules_to_save" };
        json_add_str(j, "adapter", dir);
        json_add_num(j, "lora_dropout", 0);
        if (json_get(a, "r")) (void)cJSON_AddItemToObject(j, "lora_rank", cJSON_Duplicate(json_get(a, "r"), 1));
        for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
            const cJSON *v = json_get(a, same[i]);
            if (!v || cJSON_IsNull(v)) continue;
            if (!cJSON_IsString(v)) { (void)cJSON_AddItemToObject(j, same[i], cJSON_Duplicate(v, 1)); continue; }
            cJSON *list = cJSON_AddArrayToObject(j, same[i]);           /* PEFT's regular expression is one of our entries */
            (void)cJSON_AddItemToArray(list, cJSON_CreateString(v->valuestring));
        }
    }
    if (spec_from_json(&s->spec, j, &p) != OK) rc = error_set(err, E_INVALID, "%s: %s: %s", path, p.v[0].pointer, p.v[0].message);
out:
    problems_release(&p);
    cJSON_Delete(a);
    cJSON_Delete(j);
    free(path);
    return rc;
}

static int lay_out(struct sample *s, int64_t max_len, struct error *err)
{
    enum { CHUNK = 512 };               /* prompt tokens that go through the layers together */
    struct model_options o = { &s->spec, &s->config, s->ops, &s->mesh, ACT_LAYER, max_len < CHUNK ? max_len : CHUNK, 1, 0 };
    int rc = model_new(&s->model, &o, s->stream, &s->arenas[PLACE_DEVICE], &s->arenas[PLACE_SHARED], &s->arenas[PLACE_HOST], err);
    return rc == OK ? sampler_new(&s->sampler, s->model, max_len, &s->arenas[PLACE_DEVICE], err) : rc;
}

/* Plans, allocates exactly that, lays out again, loads. */
static int open_model(struct sample *s, int64_t max_len, struct error *err)
{
    int rc = s->ops->device_open(0, err);
    if (rc == OK) rc = mesh_choose(&s->mesh, &s->spec, s->config.H, s->config.Hkv, 0, err);
    for (int i = 0; i < MEM_PLACES; i++) arena_init(&s->arenas[i], (enum mem_place)i, NULL, 0);
    if (rc == OK) rc = lay_out(s, max_len, err);
    sampler_free(s->sampler);
    model_free(s->model);
    s->sampler = NULL;
    s->model = NULL;
    for (int i = 0; i < MEM_PLACES && rc == OK; i++) {
        s->bytes[i] = s->arenas[i].peak + 1;
        arena_release_all(&s->arenas[i]);
        rc = i == PLACE_HOST ? s->ops->host_alloc(&s->memory[i], (size_t)s->bytes[i], err) : s->ops->mem_alloc(&s->memory[i], (size_t)s->bytes[i], err);
        arena_init(&s->arenas[i], (enum mem_place)i, s->memory[i], s->bytes[i]);
    }
    if (rc == OK) rc = s->ops->stream_new(&s->stream, true, err);
    if (rc == OK) rc = lay_out(s, max_len, err);
    return rc == OK ? model_load(s->model, s->base, err) : rc;
}

static void close_sample(struct sample *s)
{
    sampler_free(s->sampler);
    model_free(s->model);
    for (int i = 0; i < MEM_PLACES; i++) {
        arena_release_all(&s->arenas[i]);
        if (!s->memory[i]) continue;
        if (i == PLACE_HOST) s->ops->host_free(s->memory[i], (size_t)s->bytes[i]);
        else s->ops->mem_free(s->memory[i], (size_t)s->bytes[i]);
    }
    if (s->stream) s->ops->stream_free(s->stream);
    tokenizer_free(s->tokenizer);
    model_config_release(&s->config);
    spec_release(&s->spec);
    free(s->base);
}

static int open_tokenizer(struct sample *s, const char *dir, struct error *err)
{
    char *own = xasprintf("%s/tokenizer.json", dir);
    int rc = tokenizer_open(&s->tokenizer, access(own, F_OK) == 0 ? dir : s->base, err);
    free(own);
    return rc;
}

/* Ids that end a text: the tokenizer's, and those config.json and generation_config.json name (one or a list). */
static struct ids stop_ids(const struct sample *s)
{
    struct ids stop = { .v = xcalloc(64, sizeof *stop.v), .cap = 64 };
    char *path = xasprintf("%s/generation_config.json", s->base);
    cJSON *g = NULL;
    if (json_parse_file(&g, path, &json_limits_file, NULL) != OK) g = NULL;
    const cJSON *from[] = { json_get(s->config.json, "eos_token_id"), g ? json_get(g, "eos_token_id") : NULL };
    if (tokenizer_eos(s->tokenizer) >= 0) stop.v[stop.n++] = tokenizer_eos(s->tokenizer);
    for (size_t i = 0; i < sizeof from / sizeof from[0]; i++) {
        double id;
        for (const cJSON *e = cJSON_IsArray(from[i]) ? from[i]->child : from[i]; e && stop.n < stop.cap; e = cJSON_IsArray(from[i]) ? e->next : NULL)
            if (json_number(e, &id) && id >= 0 && id < (double)s->config.V) stop.v[stop.n++] = (int32_t)id;
    }
    cJSON_Delete(g);
    free(path);
    return stop;
}

int verb_sample(int argc, char **argv)
{
    bool json = false;
    const char *base = NULL, *prompt = NULL, *max_text = NULL, *temperature_text = NULL, *seed_text = NULL, *device = "cpu", *dir;
    const struct option options[] = { { "base", &base }, { "prompt", &prompt }, { "max_new_tokens", &max_text }, { "temperature", &temperature_text }, { "seed", &seed_text },
                                      { "device", &device }, { NULL, NULL } };
    double max_new = 64, temperature = 0, seed = 42;
    struct error err = { 0 };
    if (read_args(argc, argv, options, &dir, 1, &json, "sample CHECKPOINT --prompt TEXT [--base MODEL] [--max_new_tokens N] [--temperature T] [--seed N] [--device cpu|cuda] [--json]") != OK) return 2;
    if (!read_number(max_text, 1, 1e6, "max_new_tokens", &max_new) || !read_number(temperature_text, 0, 100, "temperature", &temperature)
        || !read_number(seed_text, 0, 9007199254740991.0, "seed", &seed)) return 2;
    struct sample s = { .ops = strcmp(device, "cuda") == 0 ? kernel_ops_cuda(&err) : kernel_ops_cpu() };
    if (!s.ops) return complain(&err);
    struct ids in = { 0 };
    int32_t *out = NULL;
    int64_t n_out = 0;
    char *text = NULL;
    size_t len, bad;
    if (!prompt) prompt = "";
    int rc = utf8_valid(prompt, strlen(prompt), &bad) ? OK : error_set(&err, E_INVALID, "--prompt: not UTF-8 at byte %zu", bad);
    if (rc == OK) rc = spec_of(&s, dir, base, &err);
    if (rc == OK) rc = open_tokenizer(&s, dir, &err);
    if (rc == OK) rc = tokenizer_encode(s.tokenizer, prompt, strlen(prompt), true, &in, &err);
    if (rc == OK && in.n == 0) rc = error_set(&err, E_INVALID, "--prompt: expected some text to continue");
    if (rc == OK) rc = open_model(&s, in.n + (int64_t)max_new, &err);
    if (rc == OK) {
        struct ids stop = stop_ids(&s);
        struct sample_options o = { temperature, (uint64_t)seed, (int64_t)max_new, stop.v, stop.n };
        out = xmalloc((unsigned long)max_new * sizeof *out);
        rc = sampler_run(s.sampler, in.v, in.n, &o, out, &n_out, &err);
        ids_release(&stop);
    }
    if (rc == OK) rc = tokenizer_decode(s.tokenizer, out, n_out, true, &text, &len, &err);
    if (rc == OK && json) {
        cJSON *o = cJSON_CreateObject();
        add_text(o, "prompt", prompt);
        add_text(o, "text", text);
        json_add_int(o, "tokens", n_out);
        json_print(o);
    } else if (rc == OK && isatty(1)) {                         /* a model may have learned what a terminal obeys; a pipe gets the very bytes */
        char *shown = printable(text, len, true), *asked = printable(prompt, strlen(prompt), true);
        (void)printf("%s%s\n", asked, shown);
        free(shown);
        free(asked);
    } else if (rc == OK) (void)printf("%s%s\n", prompt, text);
    free(text);
    free(out);
    ids_release(&in);
    close_sample(&s);
    return rc == OK ? 0 : complain(&err);
}
