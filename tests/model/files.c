/* Files from outside: whole, cut short, lying; config.json with every kind of nonsense. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "tests/model/rig.h"
#include "tests/suite.h"

static char dir[64];

static void setup(void)
{
    strcpy(dir, "/tmp/rm-files-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
    struct error err;
    (void)remove_tree(dir, &err);
}

static const char *in_dir(const char *name)
{
    static char path[200];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* A safetensors file with this header and n bytes of data (0, 1, 2 …). */
static void put(const char *name, const char *header, uint64_t len, int n)
{
    char *buf = xcalloc(1, strlen(header) + 8 + (unsigned long)n);
    for (int i = 0; i < 8; i++) buf[i] = (char)(len >> (8 * i));
    memcpy(buf + 8, header, strlen(header));
    for (int i = 0; i < n; i++) buf[8 + strlen(header) + (size_t)i] = (char)i;
    struct error err;
    ck_assert_int_eq(file_write(in_dir(name), buf, strlen(header) + 8 + (size_t)n, &err), OK);
    free(buf);
}

static void refused(const char *path, const char *says)
{
    struct safetensors *s;
    struct error err = { 0 };
    int rc = safetensors_open(&s, path, "model", &err);
    ck_assert_msg(rc != OK, "%s was taken, expected: %s", path, says);
    ck_assert_msg(strstr(err.text, says) != NULL, "\"%s\" does not say \"%s\"", err.text, says);
    ck_assert_ptr_null(s);
}

static const struct { const char *header; int data; const char *says; } bad_headers[] = {
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "inside the 7 bytes" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "belong to no tensor" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "need 12" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "two offsets" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "two offsets" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0.5,8.5]}}", 9, "two offsets" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,1e300]}}", 8, "two offsets" },
    { "{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype is F33" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "no size" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8, "overflows" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[9007199254740991,1024],\"data_offsets\":[0,8]}}", 8, "overflows" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}", 8, "overlaps" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "overlaps" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}", 3, "hole" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, "header" },
    { "{\"a\":7}", 1, "no object" },
    { "[1,2,3,4]", 1, "no JSON object" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":7,\"data_offsets\":[0,1]}}", 1, "shape" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "shape" },
};

START_TEST(lying_headers)
{
    put("x.safetensors", bad_headers[_i].header, strlen(bad_headers[_i].header), bad_headers[_i].data);
    refused(in_dir("x.safetensors"), bad_headers[_i].says);
}
END_TEST

START_TEST(lying_length)
{
    static const char h[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    static const uint64_t lengths[] = { 0, 5, sizeof h + 100, UINT64_MAX, (uint64_t)1 << 63, 200000000 };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        put("x.safetensors", h, lengths[i], 1);
        refused(in_dir("x.safetensors"), "header");
    }
    refused(in_dir("absent.safetensors"), "No such file");
    refused(dir, "neither model.safetensors");
}
END_TEST

/* Every cut and every flipped header bit of a good file is refused, or gives tensors that lie in the file. */
START_TEST(cut_and_flipped)
{
    char *data;
    size_t len;
    struct error err = { 0 };
    ck_assert_int_eq(file_read(fixture("lora-rs-some/adapter_model.safetensors"), 1 << 20, &data, &len, &err), OK);
    for (size_t n = 0; n < len; n += n < 1200 ? 7 : 101) {
        ck_assert_int_eq(file_write(in_dir("x.safetensors"), data, n, &err), OK);
        struct safetensors *s;
        ck_assert_int_ne(safetensors_open(&s, in_dir("x.safetensors"), "", &err), OK);
    }
    for (size_t bit = 0; bit < 8 * 300; bit += 3) {
        data[bit / 8] ^= (char)(1 << bit % 8);
        ck_assert_int_eq(file_write(in_dir("x.safetensors"), data, len, &err), OK);
        struct safetensors *s;
        if (safetensors_open(&s, in_dir("x.safetensors"), "", &err) == OK) {
            for (int64_t i = 0; i < safetensors_count(s); i++) {
                const struct st_tensor *t = safetensors_at(s, i);
                unsigned sum = 0;
                for (int64_t k = 0; k < t->bytes; k++) sum += ((const unsigned char *)t->data)[k];      /* the sanitizer looks on */
                ck_assert_uint_ge(sum, 0);
            }
            safetensors_close(s);
        }
        data[bit / 8] ^= (char)(1 << bit % 8);
    }
    free(data);
}
END_TEST

START_TEST(types_are_converted)
{
    static const char h[] = "{\"__metadata__\":{\"k\":\"v\"},\"bf\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[4,4]},"
                            "\"h\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[4,10]},\"q\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[10,11]}}";
    static const unsigned char d[] = { 0x80, 0x3f, 0x20, 0xc0, 0x00, 0x3c, 0x01, 0x80, 0x00, 0xfc, 7 };
    char path[200];
    struct error err = { 0 };
    struct safetensors *s;
    put("x.safetensors", h, strlen(h), sizeof d);
    strcpy(path, in_dir("x.safetensors"));
    char *whole;
    size_t len;
    ck_assert_int_eq(file_read(path, 1 << 20, &whole, &len, &err), OK);
    memcpy(whole + len - sizeof d, d, sizeof d);
    ck_assert_int_eq(file_write(path, whole, len, &err), OK);
    free(whole);
    ck_assert_msg(safetensors_open(&s, path, "", &err) == OK, "%s", err.text);
    float f[3];
    double g[3];
    ck_assert_int_eq(safetensors_get(s, safetensors_find(s, "bf"), DT_F32, f, 0, 2, &err), OK);
    ck_assert(f[0] == 1.0f && f[1] == -2.5f);
    ck_assert_int_eq(safetensors_get(s, safetensors_find(s, "h"), DT_F64, g, 0, 3, &err), OK);
    ck_assert(g[0] == 1.0 && g[1] == -0x1p-24 && isinf(g[2]) && g[2] < 0);
    ck_assert_int_eq(safetensors_get(s, safetensors_find(s, "q"), DT_F32, f, 0, 1, &err), E_UNSUPPORTED);
    ck_assert_int_eq(safetensors_get(s, safetensors_find(s, "bf"), DT_F32, f, 1, 2, &err), E_INVALID);
    ck_assert_ptr_null(safetensors_find(s, "zz"));
    ck_assert_str_eq(safetensors_metadata(s, "k"), "v");
    safetensors_close(s);
}
END_TEST

static int read_piece(void *arg, void *buf, int64_t off, int64_t bytes, struct error *err)
{
    (void)err;
    memcpy(buf, (const char *)arg + off, (size_t)bytes);
    return OK;
}

static int read_fails(void *arg, void *buf, int64_t off, int64_t bytes, struct error *err)
{
    (void)arg; (void)buf; (void)off; (void)bytes;
    return error_set(err, E_IO, "told to fail");
}

START_TEST(shards)
{
    float a[6] = { 1, 2, 3, 4, 5, 6 }, b[4] = { 7, 8, 9, 10 }, c[1] = { 11 }, out[6];
    struct st_source t[] = { { .name = "a", .dt = DT_F32, .ndim = 2, .dim = { 2, 3 }, .data = a }, { .name = "b", .dt = DT_F32, .ndim = 1, .dim = { 4 }, .read = read_piece, .arg = b },
                             { .name = "c", .dt = DT_F32, .ndim = 1, .dim = { 1 }, .data = c } };
    struct error err = { 0 };
    struct safetensors *s;
    ck_assert_msg(safetensors_write_dir(dir, "model", t, 3, 24, &err) == OK, "%s", err.text);
    ck_assert_int_eq(access(in_dir("model-00002-of-00002.safetensors"), F_OK), 0);
    ck_assert_msg(safetensors_open(&s, dir, "model", &err) == OK, "%s", err.text);
    ck_assert_int_eq(safetensors_count(s), 3);
    ck_assert_int_eq(safetensors_get(s, safetensors_find(s, "b"), DT_F32, out, 0, 4, &err), OK);
    ck_assert(memcmp(out, b, sizeof b) == 0);
    ck_assert_int_eq(safetensors_find(s, "a")->dim[1], 3);
    safetensors_close(s);

    ck_assert_int_eq(unlink(in_dir("model-00002-of-00002.safetensors")), 0);
    refused(dir, "model-00002-of-00002.safetensors");
    static const char escape[] = "{\"weight_map\":{\"a\":\"../model-00001-of-00002.safetensors\"}}", absent[] = "{\"weight_map\":{\"zz\":\"model-00001-of-00002.safetensors\"}}";
    ck_assert_int_eq(file_write(in_dir("model.safetensors.index.json"), escape, sizeof escape - 1, &err), OK);
    refused(dir, "name of a file in the same folder");
    ck_assert_int_eq(file_write(in_dir("model.safetensors.index.json"), absent, sizeof absent - 1, &err), OK);
    refused(dir, "tensor zz is not in");

    t[1].read = read_fails;             /* nothing half-written stays */
    ck_assert_int_eq(safetensors_write(in_dir("new.safetensors"), t, 3, NULL, &err), E_IO);
    ck_assert_int_ne(access(in_dir("new.safetensors"), F_OK), 0);
    char command[200];
    (void)snprintf(command, sizeof command, "test -z \"$(ls %s | grep tmp)\"", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

static const struct { const char *change, *says; } bad_configs[] = {
    { "\"model_type\":\"gpt_neox\"", "gpt_neox" }, { "\"model_type\":7", "model_type is 7" }, { "\"hidden_size\":\"16\"", "hidden_size is \"16\"" },
    { "\"hidden_size\":0", "hidden_size is 0" }, { "\"hidden_size\":1e18", "hidden_size" }, { "\"num_hidden_layers\":-1", "num_hidden_layers is -1" },
    { "\"num_attention_heads\":3", "num_key_value_heads" }, { "\"num_key_value_heads\":3", "num_key_value_heads is 3" }, { "\"head_dim\":5", "head width 5" },
    { "\"hidden_act\":\"gelu\"", "gelu" }, { "\"rms_norm_eps\":\"x\"", "rms_norm_eps" }, { "\"vocab_size\":null", "vocab_size" },
    { "\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2}", "longrope" }, { "\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling.factor is nothing" },
    { "\"rope_scaling\":{\"type\":\"linear\",\"factor\":-1}", "factor is -1" }, { "\"rope_scaling\":7", "rope_scaling is 7" },
    { "\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8}", "rope_parameters.low_freq_factor" }, { "\"tie_word_embeddings\":1", "tie_word_embeddings is 1" },
    { "\"torch_dtype\":\"int8\"", "torch_dtype" }, { "\"attention_dropout\":0.1", "attention_dropout" }, { "\"quantization_config\":{}", "quantization_config" },
    { "\"use_sliding_window\":true,\"sliding_window\":4,\"layer_types\":[\"sliding_attention\",\"full_attention\"]", "layer_types" },
};

static const char base_config[] = "\"model_type\":\"qwen2\",\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                                  "\"vocab_size\":40,\"max_position_embeddings\":64";

/* The base with the keys of `change` in place of its own. */
static void write_config(const char *change)
{
    char text[1000];
    struct error err;
    cJSON *j, *c;
    (void)snprintf(text, sizeof text, "{%s}", base_config);
    ck_assert_int_eq(json_parse(&j, text, strlen(text), &json_limits_file, &err), OK);
    (void)snprintf(text, sizeof text, "{%s}", change);
    ck_assert_msg(json_parse(&c, text, strlen(text), &json_limits_file, &err) == OK, "%s", err.text);
    while (c->child) {
        cJSON *e = cJSON_DetachItemViaPointer(c, c->child);
        cJSON_DeleteItemFromObjectCaseSensitive(j, e->string);
        char *key = xstrdup(e->string);
        (void)cJSON_AddItemToObject(j, key, e);
        free(key);
    }
    char *line = json_line(j);
    ck_assert_int_eq(file_write(in_dir("config.json"), line, strlen(line), &err), OK);
    free(line);
    cJSON_Delete(c);
    cJSON_Delete(j);
}

START_TEST(config_is_checked)
{
    struct model_config c;
    struct error err = { 0 };
    write_config(bad_configs[_i].change);
    int rc = model_config_read(&c, dir, NULL, &err);
    ck_assert_msg(rc == E_INVALID || rc == E_UNSUPPORTED, "%s was taken", bad_configs[_i].change);
    ck_assert_msg(strstr(err.text, bad_configs[_i].says) != NULL && strstr(err.text, "config.json") != NULL, "\"%s\" does not say \"%s\"", err.text, bad_configs[_i].says);
}
END_TEST

static void with_spec(struct spec *s, const char *more)
{
    char text[500];
    struct problems p = { 0 };
    (void)snprintf(text, sizeof text, "{\"model\":\"m\",\"dataset\":[\"x\"],\"output_dir\":\"x\"%s}", more);
    ck_assert_int_eq(spec_parse(s, text, strlen(text), &p), OK);
}

/* The factor comes from the original length, whatever was saved before: never multiplied twice. */
/* ms-swift's rules (model_args.py, _init_rope_scaling), worked by hand: which length counts as the original one, and what follows. */
static const struct { const char *config, *spec; enum rope_type type; double factor; int64_t original, positions; } swift[] = {
    /* max_position_embeddings is 64 in all of them */
    { "\"rope_theta\":10000", "", ROPE_DEFAULT, -1, 64, 64 },
    { "\"rope_theta\":10000", ",\"max_model_len\":48", ROPE_DEFAULT, -1, 64, 48 },
    { "\"rope_theta\":10000", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}", ROPE_LINEAR, 2.5, 64, 160 },
    { "\"rope_theta\":10000", ",\"rope_scaling\":{\"rope_type\":\"yarn\"},\"max_model_len\":129", ROPE_YARN, 3, 64, 129 },
    { "\"rope_theta\":10000", ",\"rope_scaling\":{\"rope_type\":\"yarn\"},\"max_model_len\":10", ROPE_YARN, 1, 64, 10 },
    { "\"rope_theta\":10000", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2},\"max_model_len\":500", ROPE_YARN, 2, 64, 500 },
    { "\"rope_theta\":10000", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"original_max_position_embeddings\":16},\"max_model_len\":64", ROPE_YARN, 4, 16, 64 },
    { "\"rope_theta\":10000", ",\"rope_scaling\":{\"type\":\"dynamic\"},\"max_model_len\":200", ROPE_DYNAMIC, 4, 64, 64 },
    { "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":16}", ",\"max_model_len\":40", ROPE_YARN, 3, 16, 40 },
    { "\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":16}", ",\"max_model_len\":40", ROPE_YARN, 3, 16, 40 },
    { "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}", "", ROPE_LINEAR, 4, 64, 64 },                              /* as transformers reads it */
    { "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}", ",\"max_model_len\":100", ROPE_LINEAR, 7, 16, 100 },      /* 64 / 4: it was scaled to 64 */
    { "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8}", ROPE_YARN, 8, 16, 128 },
    { "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8}", ",\"max_model_len\":30", ROPE_LLAMA3, 4, 8, 30 },
};

START_TEST(rope_scaling_as_in_swift)
{
    struct model_config c;
    struct error err = { 0 };
    struct spec s;
    with_spec(&s, swift[_i].spec);
    write_config(swift[_i].config);
    for (int times = 0; times < 2; times++) {       /* the saved configuration, read again with the same spec, is the same */
        ck_assert_msg(model_config_read(&c, dir, &s, &err) == OK, "%s", err.text);
        ck_assert_int_eq(c.rope.type, swift[_i].type);
        if (swift[_i].factor > 0) ck_assert_double_eq(c.rope.factor, swift[_i].factor);
        if (swift[_i].factor > 0) ck_assert_int_eq(c.rope.original_max, swift[_i].original);
        ck_assert_int_eq(c.max_positions, swift[_i].positions);
        char *text = model_config_text(&c, DT_BF16, false);
        ck_assert_int_eq(file_write(in_dir("config.json"), text, strlen(text), &err), OK);
        free(text);
        model_config_release(&c);
    }
    spec_release(&s);
}
END_TEST

START_TEST(rope_scaling_once)
{
    struct model_config c;
    struct error err = { 0 };
    struct spec s;
    with_spec(&s, ",\"rope_scaling\":{\"rope_type\":\"yarn\"},\"max_model_len\":200");
    write_config("\"rope_theta\":10000");
    double factor = 0, f[2];
    for (int times = 0; times < 3; times++) {
        ck_assert_msg(model_config_read(&c, dir, &s, &err) == OK, "%s", err.text);
        ck_assert_int_eq(c.rope.type, ROPE_YARN);
        ck_assert_double_eq(c.rope.factor, 4);                  /* ceil(200 / 64) */
        ck_assert_int_eq(c.rope.original_max, 64);
        ck_assert_int_eq(c.max_positions, 200);
        model_config_rope(&c, 100, f, &factor);
        ck_assert_double_eq_tol(factor, 0.1 * log(4) + 1, 1e-12);
        char *text = model_config_text(&c, DT_BF16, false);
        ck_assert_int_eq(file_write(in_dir("config.json"), text, strlen(text), &err), OK);      /* save, read again */
        free(text);
        model_config_release(&c);
    }
    spec_release(&s);
    with_spec(&s, "");                  /* and without the spec's word it stays as saved */
    ck_assert_int_eq(model_config_read(&c, dir, &s, &err), OK);
    ck_assert_double_eq(c.rope.factor, 4);
    ck_assert_int_eq(c.stored_dtype, DT_BF16);
    model_config_release(&c);
    spec_release(&s);
    with_spec(&s, ",\"rope_scaling\":{\"rope_type\":\"linear\"}");
    ck_assert_int_eq(model_config_read(&c, dir, &s, &err), E_INVALID);  /* neither a factor nor a length to compute it from */
    spec_release(&s);
}
END_TEST

static const struct { const char *model, *more, *says; } bad_models[] = {
    { "qwen2-tied", ",\"tuner_type\":\"lora\",\"target_modules\":[\"q_proj\",\"typo_proj\"]", "typo_proj" },
    { "qwen2-tied", ",\"tuner_type\":\"lora\",\"modules_to_save\":[\"hat\"]", "hat" },
    { "qwen2-tied", ",\"tuner_type\":\"lora\",\"target_modules\":[\"q_proj.*\"]", "matches no linear layer" },
    { "qwen2-tied", ",\"tuner_type\":\"lora\",\"target_modules\":[\"(q_proj\"]", "(q_proj" },
    { "qwen2-tied", ",\"tuner_type\":\"lora\",\"target_modules\":[\"lm_head\"]", "modules_to_save" },
};

START_TEST(targets_are_checked)
{
    struct rig r;
    struct error err = { 0 };
    ck_assert_int_ne(rig_open(&r, fixture(bad_models[_i].model), bad_models[_i].more, ACT_NONE, 64, 4, &err), OK);
    ck_assert_msg(strstr(err.text, bad_models[_i].says) != NULL, "%s", err.text);
    rig_close(&r);
}
END_TEST

/* Weights that do not fit the configuration are refused by tensor name, and the model is not touched. */
START_TEST(weights_are_checked)
{
    struct rig r;
    struct error err = { 0 };
    static const char full[] = ",\"tuner_type\":\"full\",\"torch_dtype\":\"float32\"";
    ck_assert_int_eq(rig_open(&r, fixture("qwen2-tied"), full, ACT_NONE, 64, 4, &err), OK);
    ck_assert_int_eq(model_load(r.m, fixture("qwen2-untied"), &err), E_INVALID);        /* one kv head less */
    ck_assert_ptr_nonnull(strstr(err.text, "k_proj"));
    ck_assert_int_eq(model_load(r.m, fixture("llama"), &err), E_INVALID);
    ck_assert_int_eq(model_load(r.m, fixture("rope-yarn"), &err), E_INVALID);           /* one layer less */
    ck_assert_ptr_nonnull(strstr(err.text, "layers.1"));
    ck_assert_int_eq(model_load(r.m, dir, &err), E_NOTFOUND);
    rig_close(&r);
    ck_assert_int_eq(rig_open(&r, fixture("rope-linear"), full, ACT_NONE, 64, 4, &err), OK);
    ck_assert_int_eq(model_load(r.m, fixture("llama-old"), &err), E_INVALID);           /* a layer too many */
    ck_assert_ptr_nonnull(strstr(err.text, "is not part of the model"));
    rig_close(&r);
    ck_assert_int_eq(rig_open(&r, fixture("qwen2-tied"), ",\"torch_dtype\":\"float32\",\"lora_rank\":5,\"lora_alpha\":8", ACT_NONE, 64, 4, &err), OK);
    ck_assert_int_eq(model_load_adapter(r.m, fixture("lora"), &err), E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "lora_rank 5"));
    rig_close(&r);
}
END_TEST

/* Random weights depend on the seed and the name alone. */
START_TEST(random_weights)
{
    struct rig r, l;
    struct error err = { 0 };
    ck_assert_int_eq(rig_open(&r, fixture("qwen2-untied"), ",\"tuner_type\":\"full\",\"torch_dtype\":\"float32\"", ACT_NONE, 64, 4, &err), OK);
    ck_assert_int_eq(rig_open(&l, fixture("qwen2-untied"), ",\"torch_dtype\":\"float32\"", ACT_NONE, 64, 4, &err), OK);
    ck_assert_int_eq(model_init_random(r.m, 5, &err), OK);
    ck_assert_int_eq(model_init_random(l.m, 5, &err), OK);
    const struct params *p = model_params(r.m);
    double sum = 0, sq = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const struct param *q = &p->v[i], *other = params_find(model_params(l.m), q->name);
        ck_assert_ptr_nonnull(other);
        ck_assert_msg(memcmp(q->w, other->w, (size_t)q->n * 4) == 0, "%s", q->name);
        for (int64_t k = 0; q->init == INIT_NORMAL && k < q->n; k++, n++) { double x = (double)((const float *)q->w)[k]; sum += x; sq += x * x; }
    }
    double sd = (double)r.config.initializer_range;
    ck_assert_double_lt(fabs(sum / (double)n), 4 * sd / sqrt((double)n));
    ck_assert_double_eq_tol(sqrt(sq / (double)n), sd, 5 * sd / sqrt((double)n));
    ck_assert_int_eq(params_find(p, "model.norm.weight")->decay, false);
    ck_assert_int_eq(params_find(p, "model.layers.0.input_layernorm.weight")->decay, false);
    ck_assert_int_eq(params_find(p, "model.layers.0.self_attn.q_proj.bias")->decay, false);
    ck_assert_int_eq(params_find(p, "model.embed_tokens.weight")->decay, true);
    rig_close(&r);
    rig_close(&l);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("model-files");
    TCase *t = tcase_create("files");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, lying_headers, 0, sizeof bad_headers / sizeof bad_headers[0]);
    tcase_add_test(t, lying_length);
    tcase_add_test(t, cut_and_flipped);
    tcase_add_test(t, types_are_converted);
    tcase_add_test(t, shards);
    tcase_add_loop_test(t, config_is_checked, 0, sizeof bad_configs / sizeof bad_configs[0]);
    tcase_add_loop_test(t, rope_scaling_as_in_swift, 0, sizeof swift / sizeof swift[0]);
    tcase_add_test(t, rope_scaling_once);
    tcase_add_loop_test(t, targets_are_checked, 0, sizeof bad_models / sizeof bad_models[0]);
    tcase_add_test(t, weights_are_checked);
    tcase_add_test(t, random_weights);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
