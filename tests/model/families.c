/* Every family, RoPE type and tuner against transformers and PEFT: logits, loss and all gradients, under every policy. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/rig.h"
#include "worker/model/merge.h"
#include "worker/model/sampler.h"
#include "tests/suite.h"

static const struct { const char *name, *base, *more; } cases[] = {
    { "qwen2-tied", NULL, "" }, { "qwen2-untied", NULL, "" }, { "qwen2-window", NULL, "" }, { "qwen3", NULL, "" }, { "llama", NULL, "" },
    { "llama-old", NULL, "" }, { "mistral", NULL, "" }, { "rope-linear", NULL, "" }, { "rope-dynamic", NULL, "" }, { "rope-yarn", NULL, "" },
    { "rope-yarn-mscale", NULL, "" },
    { "lora", "qwen2-tied", "\"lora_rank\":4,\"lora_alpha\":8,\"target_modules\":[\"all-linear\"]" },
    { "lora", "qwen2-tied", "\"lora_rank\":4,\"lora_alpha\":8,\"target_modules\":[\".*\\\\.(q|k|v|o|gate|up|down)_proj\"]" },
    { "lora-rs-some", "qwen2-untied", "\"lora_rank\":3,\"lora_alpha\":6,\"use_rslora\":true,\"target_modules\":[\"q_proj\",\"mlp.down_proj\"]" },
    { "lora-save", "qwen2-untied", "\"lora_rank\":2,\"lora_alpha\":4,\"target_modules\":[\"v_proj\"],\"modules_to_save\":[\"lm_head\",\"embed_tokens\",\"input_layernorm\"]" },
    { "lora-save-tied", "qwen2-tied", "\"lora_rank\":2,\"lora_alpha\":4,\"target_modules\":[\"v_proj\"],\"modules_to_save\":[\"lm_head\"]" },
    { "lora-patterns", "qwen2-tied", "\"lora_rank\":4,\"lora_alpha\":8,\"target_modules\":[\"all-linear\"]" },     /* the patterns are the adapter's */
    { "lora-patterns", "qwen2-tied", "\"lora_rank\":4,\"lora_alpha\":8,\"target_modules\":[\"all-linear\"],"
      "\"rank_pattern\":{\"0.self_attn.q_proj\":6,\"q_proj\":2,\"1.mlp.up_proj\":5,\"1.mlp.down_proj\":5},\"alpha_pattern\":{\"layers\\\\.0\\\\..*\":20,\"v_proj\":3}" },
    { "dora", "qwen2-untied", "\"lora_rank\":3,\"lora_alpha\":6,\"use_dora\":true,\"target_modules\":[\"q_proj\",\"v_proj\",\"up_proj\",\"down_proj\"]" },
};
enum { N_CASES = sizeof cases / sizeof cases[0] };
static const enum act_policy policies[] = { ACT_NONE, ACT_ATTENTION, ACT_LAYER, ACT_OFFLOAD_HOST, ACT_OFFLOAD_DISK };
enum { N_POLICIES = sizeof policies / sizeof policies[0] };

/* Largest error relative to the tensor's norm per element. */
static double relative(const double *want, const float *got, int64_t n)
{
    double num = 0, den = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = want[i] - (double)got[i];
        num += d * d;
        den += want[i] * want[i];
    }
    return den > 0 ? sqrt(num / den) : sqrt(num);
}

static void open_case(struct rig *r, struct test_case *c, int i, enum act_policy policy, const char *extra)
{
    char more[2000];
    struct error err = { 0 };
    const char *base = cases[i].base ? cases[i].base : cases[i].name;
    case_open(c, fixture(cases[i].name));
    if (cases[i].base) (void)snprintf(more, sizeof more, ",\"torch_dtype\":\"float32\",\"offload_dir\":\"/tmp\",\"adapter\":\"%s\",%s%s", fixture(cases[i].name), cases[i].more, *extra ? extra : ",\"lora_dropout\":0");
    else (void)snprintf(more, sizeof more, ",\"torch_dtype\":\"float32\",\"tuner_type\":\"full\",\"offload_dir\":\"/tmp\"%s", extra);
    ck_assert_msg(rig_open(r, fixture(base), more, policy, c->row.T + 3, c->row.n_docs + 1, &err) == OK, "%s: %s", cases[i].name, err.text);
    ck_assert_msg(model_load(r->m, fixture(base), &err) == OK, "%s: %s", cases[i].name, err.text);
}

/* tiles: MLP, logits and adapters in tiles of 5 tokens, the last one short; one of them without a label, so it is skipped. */
static void check_case(int i, enum act_policy policy, int64_t tile_rows)
{
    rig_tile_rows = tile_rows;
    struct rig r;
    struct test_case c;
    struct error err = { 0 };
    struct model_loss loss = { 0 };
    open_case(&r, &c, i, policy, "");
    rig_tile_rows = 0;
    double *want_loss = case_get(&c, "loss", NULL);
    ck_assert_int_eq(model_zero_grads(r.m, &err), OK);
    ck_assert_msg(model_row(r.m, &c.row, &err) == OK, "%s", err.text);
    ck_assert_msg(model_forward_backward(r.m, 1.0 / c.row.weight_sum, &loss, &err) == OK, "%s", err.text);
    double got = loss.loss_sum / c.row.weight_sum;
    ck_assert_msg(fabs(got - *want_loss) <= 1e-5 * *want_loss, "%s: loss %.9g, Hugging Face's %.9g", cases[i].name, got, *want_loss);
    ck_assert_double_eq(loss.weight_sum, c.row.weight_sum);

    const struct params *p = model_params(r.m);
    int64_t compared = 0;
    for (int64_t k = 0; k < p->n; k++) {
        if (!p->v[k].trained) { ck_assert_ptr_null(p->v[k].g); continue; }
        char name[300];
        int64_t n;
        (void)snprintf(name, sizeof name, "grad.%s", p->v[k].name);
        double *want = case_get(&c, name, &n);
        ck_assert_int_eq(n, p->v[k].n);
        double e = relative(want, p->v[k].g, n);
        ck_assert_msg(e <= 1e-4, "%s: gradient of %s is off by %.3g", cases[i].name, p->v[k].name, e);
        free(want);
        compared++;
    }
    int64_t given = 0;
    for (int64_t k = 0; k < safetensors_count(c.file); k++) given += safetensors_at(c.file, k)->name[0] == 'g';
    ck_assert_int_eq(compared, given);

    int64_t n;
    double *want = case_get(&c, "logits", &n);
    float *logits = xcalloc((unsigned long)n, sizeof *logits);
    ck_assert_int_eq(model_logits(r.m, 0, c.row.T, logits, &err), OK);
    double e = relative(want, logits, n);
    ck_assert_msg(e <= 1e-5, "%s: logits are off by %.3g", cases[i].name, e);
    free(logits);
    free(want);
    free(want_loss);
    case_close(&c);
    rig_close(&r);
}

START_TEST(agrees_with_hugging_face) { check_case(_i / N_POLICIES, policies[_i % N_POLICIES], 0); }
END_TEST

START_TEST(agrees_in_tiles) { check_case(_i, policies[_i % 3], 5); }
END_TEST

/* What a policy keeps changes no bit of what comes out. */
START_TEST(policies_agree_to_the_bit)
{
    float *first = NULL;
    for (int k = 0; k < N_POLICIES; k++) {
        struct rig r;
        struct test_case c;
        struct error err = { 0 };
        struct model_loss loss = { 0 };
        open_case(&r, &c, _i, policies[k], "");
        ck_assert_int_eq(model_zero_grads(r.m, &err), OK);
        ck_assert_int_eq(model_row(r.m, &c.row, &err), OK);
        ck_assert_int_eq(model_forward_backward(r.m, 0.5, &loss, &err), OK);
        const struct params *p = model_params(r.m);
        size_t bytes = (size_t)p->n_flat * sizeof *first;
        if (!first) {
            first = xmalloc(bytes);
            memcpy(first, p->flat_g, bytes);
        }
        ck_assert_msg(memcmp(first, p->flat_g, bytes) == 0, "%s: policy %s", cases[_i].name, act_policy_names[policies[k]]);
        case_close(&c);
        rig_close(&r);
    }
    free(first);
}
END_TEST

/* --- how often, not what --- */
static struct { struct kernel_ops ops; int attn_fwd, attn_bwd, cross_entropy; } counted;

static int count_attn_fwd(struct stream *s, enum dtype dt, enum dtype dto, void *o, void *lse, const void *q, const void *k, const void *v, struct attn_shape n,
                          struct attn_spans spans, bool merge, void *ws)
{
    counted.attn_fwd++;
    return kernel_ops_cpu()->attn_fwd(s, dt, dto, o, lse, q, k, v, n, spans, merge, ws);
}

static int count_attn_bwd(struct stream *s, enum dtype dt, void *dq, void *dk, void *dv, const void *dout, const void *q, const void *k, const void *v, const void *lse,
                          const void *delta, struct attn_shape n, struct attn_spans spans, void *ws)
{
    counted.attn_bwd++;
    return kernel_ops_cpu()->attn_bwd(s, dt, dq, dk, dv, dout, q, k, v, lse, delta, n, spans, ws);
}

static int count_cross_entropy(struct stream *s, enum dtype dt, float *loss, uint8_t *correct, void *z, const int32_t *labels, const float *weight, float scale, bool grad,
                               int64_t N, int64_t V)
{
    counted.cross_entropy++;
    return kernel_ops_cpu()->cross_entropy(s, dt, loss, correct, z, labels, weight, scale, grad, N, V);
}

/* Recomputing a layer that kept attention's output and LSE never repeats attention; a tile of logits without a label is not computed. */
START_TEST(only_what_is_needed)
{
    struct rig r;
    struct test_case c;
    struct error err = { 0 };
    struct model_loss loss = { 0 };
    counted.ops = *kernel_ops_cpu();
    counted.ops.attn_fwd = count_attn_fwd;
    counted.ops.attn_bwd = count_attn_bwd;
    counted.ops.cross_entropy = count_cross_entropy;
    counted.attn_fwd = counted.attn_bwd = counted.cross_entropy = 0;
    rig_ops = &counted.ops;
    rig_tile_rows = 3;
    open_case(&r, &c, 0, policies[_i], "");
    rig_ops = NULL;
    rig_tile_rows = 0;
    ck_assert_int_eq(model_zero_grads(r.m, &err), OK);
    ck_assert_int_eq(model_row(r.m, &c.row, &err), OK);
    ck_assert_int_eq(model_forward_backward(r.m, 1, &loss, &err), OK);
    int64_t L = r.config.L, tiles = 0, all = 0;
    for (int64_t i = 0; i < c.row.T; i += 3, all++) {
        bool any = false;
        for (int64_t k = i; k < i + 3 && k < c.row.T; k++) any = any || c.row.labels[k] >= 0;
        tiles += any;
    }
    ck_assert_int_lt(tiles, all);
    ck_assert_int_eq(counted.cross_entropy, tiles);
    ck_assert_int_eq(counted.attn_fwd, policies[_i] == ACT_NONE || policies[_i] == ACT_ATTENTION ? L : 2 * L);
    ck_assert_int_eq(counted.attn_bwd, L);
    case_close(&c);
    rig_close(&r);
}
END_TEST

/* Two sweeps add up, and an evaluation between them changes nothing, to the bit. */
START_TEST(accumulates)
{
    struct rig r;
    struct test_case c;
    struct error err = { 0 };
    struct model_loss loss = { 0 }, eval = { 0 };
    open_case(&r, &c, _i, ACT_ATTENTION, "");
    const struct params *p = model_params(r.m);
    float *once = xmalloc((unsigned long)p->n_flat * sizeof *once);
    ck_assert_int_eq(model_zero_grads(r.m, &err), OK);
    ck_assert_int_eq(model_row(r.m, &c.row, &err), OK);
    ck_assert_int_eq(model_forward_backward(r.m, 0.25, &loss, &err), OK);
    for (int64_t k = 0; k < p->n_flat; k++) once[k] = p->flat_g[k];
    ck_assert_int_eq(model_eval(r.m, &eval, &err), OK);
    ck_assert(eval.loss_sum == loss.loss_sum && eval.correct == loss.correct && eval.count == loss.count);
    ck_assert_int_eq(model_forward_backward(r.m, 0.25, &loss, &err), OK);
    for (int64_t k = 0; k < p->n_flat; k++) ck_assert_msg(fabsf(p->flat_g[k] - 2 * once[k]) <= 1e-6f + 1e-5f * fabsf(once[k]), "%lld: %g, twice %g", (long long)k, (double)p->flat_g[k], (double)once[k]);
    free(once);
    case_close(&c);
    rig_close(&r);
}
END_TEST

/* With dropout on, the gradient is the derivative of the loss that the same masks give. DoRA's norms stand still meanwhile. */
START_TEST(dropout_gradients)
{
    static const char *const name[] = { "lora", "dora" };
    struct rig r;
    struct test_case c;
    struct error err = { 0 };
    int i = 0;
    while (strcmp(cases[i].name, name[_i]) != 0) i++;
    open_case(&r, &c, i, ACT_ATTENTION, ",\"lora_dropout\":0.3");
    const struct params *p = model_params(r.m);
    ck_assert_int_eq(model_row(r.m, &c.row, &err), OK);
    ck_assert_int_eq(model_zero_grads(r.m, &err), OK);
    struct model_loss at = { 0 }, without = { 0 };
    ck_assert_int_eq(model_eval(r.m, &without, &err), OK);
    ck_assert_int_eq(model_forward_backward(r.m, 1, &at, &err), OK);
    ck_assert(fabs(at.loss_sum - without.loss_sum) > 1e-3);         /* the masks do something */
    float *g = xmalloc((unsigned long)p->n_flat * sizeof *g);
    memcpy(g, p->flat_g, (size_t)p->n_flat * sizeof *g);
    for (int64_t k = 0; k < p->n; k++) {
        const struct param *q = &p->v[k];
        if (!q->trained) continue;
        double norm = 0, l[2];
        for (int64_t j = 0; j < q->n; j++) norm += (double)g[q->at + j] * (double)g[q->at + j];
        if (norm == 0) continue;
        float step = (float)(0.01 / sqrt(norm));        /* along the gradient: the loss moves by 0.02 |g| */
        for (int side = 0; side < 2; side++) {
            float h = side ? -2 * step : step;
            for (int64_t j = 0; j < q->n; j++) ((float *)q->w)[j] += h * g[q->at + j];
            if (q->lora == LORA_MAGNITUDE) ck_assert_int_eq(model_weights_changed(r.m, &err), OK);
            struct model_loss x = { 0 };
            ck_assert_int_eq(model_forward_backward(r.m, 1, &x, &err), OK);
            l[side] = x.loss_sum;
        }
        for (int64_t j = 0; j < q->n; j++) ((float *)q->w)[j] += step * g[q->at + j];
        if (q->lora == LORA_MAGNITUDE) ck_assert_int_eq(model_weights_changed(r.m, &err), OK);
        double slope = (l[0] - l[1]) / (2 * (double)step), e = fabs(slope - norm) / norm;
        ck_assert_msg(e < 0.01 || fabs(slope - norm) * (double)step < 1e-4, "%s: slope %g, gradient %g", q->name, slope, norm);
    }
    free(g);
    case_close(&c);
    rig_close(&r);
}
END_TEST

/* Errors of bf16 gradients against float64 for the same stored weights, ours and torch's, summed over tensors. */
static void bf16_errors_of(const char *name, const char *adapter, enum act_policy policy, bool each, double sum[2])
{
    char more[1500] = ",\"tuner_type\":\"full\"";
    struct rig r;
    struct test_case c;
    struct error err = { 0 };
    struct model_loss loss = { 0 };
    if (adapter) (void)snprintf(more, sizeof more, ",\"lora_rank\":4,\"lora_alpha\":8,\"lora_dropout\":0,\"adapter\":\"%s\"%s", fixture(name), adapter);
    case_open(&c, fixture(name));
    ck_assert_msg(rig_open(&r, fixture("qwen2-bf16"), more, policy, c.row.T, c.row.n_docs, &err) == OK, "%s", err.text);
    ck_assert_msg(model_load(r.m, fixture("qwen2-bf16"), &err) == OK, "%s", err.text);
    ck_assert_int_eq(model_zero_grads(r.m, &err), OK);
    ck_assert_int_eq(model_row(r.m, &c.row, &err), OK);
    ck_assert_msg(model_forward_backward(r.m, 1.0 / c.row.weight_sum, &loss, &err) == OK, "%s", err.text);
    double *want = case_get(&c, "loss", NULL);
    ck_assert_double_le(fabs(loss.loss_sum / c.row.weight_sum - *want) / *want, 5e-3);
    free(want);
    const struct params *p = model_params(r.m);
    for (int64_t k = 0; k < p->n; k++) {
        char key[300];
        int64_t n;
        if (!p->v[k].trained) continue;
        (void)snprintf(key, sizeof key, "grad.%s", p->v[k].name);
        want = case_get(&c, key, &n);
        (void)snprintf(key, sizeof key, "bf16.%s", p->v[k].name);
        double *torch = case_get(&c, key, NULL), e = relative(want, p->v[k].g, n);
        ck_assert_msg(!each || e <= 2 * *torch, "%s: error %.4g, torch's bf16 %.4g", p->v[k].name, e, *torch);
        sum[0] += e;
        sum[1] += *torch;
        free(want);
        free(torch);
    }
    case_close(&c);
    rig_close(&r);
}

/* Full tuning: no tensor further from the truth than twice torch's bf16. */
START_TEST(bf16_full)
{
    double sum[2] = { 0 };
    bf16_errors_of("qwen2-bf16", NULL, _i ? ACT_LAYER : ACT_NONE, true, sum);
    ck_assert_double_le(sum[0], 1.3 * sum[1]);
    if (getenv("RM_SHOW")) (void)printf("bf16 full: errors %.4g, torch's %.4g\n", sum[0], sum[1]);
}
END_TEST

/* LoRA: one draw of rounding errors can be lucky for either side, so five adapters count together. */
START_TEST(bf16_lora)
{
    double sum[2] = { 0 };
    for (int k = 1; k <= 5; k++) {
        char name[20];
        (void)snprintf(name, sizeof name, "lora-bf16-%d", k);
        bf16_errors_of(name, "", ACT_ATTENTION, false, sum);
    }
    ck_assert_msg(sum[0] <= 1.3 * sum[1], "errors %.4g, torch's %.4g", sum[0], sum[1]);
    if (getenv("RM_SHOW")) (void)printf("bf16 LoRA: errors %.4g, torch's %.4g\n", sum[0], sum[1]);
}
END_TEST

/* DoRA, and modules trained whole beside adapters. */
START_TEST(bf16_others)
{
    static const struct { const char *name, *more; } other[] = {
        { "dora-bf16", ",\"use_dora\":true" }, { "save-bf16", ",\"modules_to_save\":[\"lm_head\",\"embed_tokens\",\"norm\"]" },
    };
    double sum[2] = { 0 };
    bf16_errors_of(other[_i].name, other[_i].more, ACT_LAYER, false, sum);
    ck_assert_msg(sum[0] <= 1.5 * sum[1], "%s: errors %.4g, torch's %.4g", other[_i].name, sum[0], sum[1]);
    if (getenv("RM_SHOW")) (void)printf("%s: errors %.4g, torch's %.4g\n", other[_i].name, sum[0], sum[1]);
}
END_TEST

/* The adapter works in f32 beside bf16 activations, dropout included: the same masks as in f32, the same gradients but for rounding. */
START_TEST(bf16_dropout)
{
    float *first = NULL;
    for (int bf16_too = 0; bf16_too < 2; bf16_too++) {
        char more[1500];
        struct rig r;
        struct test_case c;
        struct error err = { 0 };
        struct model_loss loss = { 0 };
        (void)snprintf(more, sizeof more, ",\"torch_dtype\":\"%s\",\"lora_rank\":4,\"lora_alpha\":8,\"lora_dropout\":0.3,\"adapter\":\"%s\"", bf16_too ? "bfloat16" : "float32", fixture("lora-bf16-1"));
        case_open(&c, fixture("lora-bf16-1"));
        rig_tile_rows = 7;
        ck_assert_msg(rig_open(&r, fixture("qwen2-bf16"), more, ACT_ATTENTION, c.row.T, c.row.n_docs, &err) == OK, "%s", err.text);
        rig_tile_rows = 0;
        ck_assert_int_eq(model_load(r.m, fixture("qwen2-bf16"), &err), OK);
        ck_assert_int_eq(model_zero_grads(r.m, &err), OK);
        ck_assert_int_eq(model_row(r.m, &c.row, &err), OK);
        ck_assert_int_eq(model_forward_backward(r.m, 1, &loss, &err), OK);
        const struct params *p = model_params(r.m);
        ck_assert_int_eq(p->dt, DT_F32);
        if (!first) {
            first = xmalloc((unsigned long)p->n_flat * sizeof *first);
            memcpy(first, p->flat_g, (size_t)p->n_flat * sizeof *first);
        }
        double num = 0, den = 0;
        for (int64_t i = 0; i < p->n_flat; i++) { double d = (double)first[i] - (double)p->flat_g[i]; num += d * d; den += (double)first[i] * (double)first[i]; }
        ck_assert_double_le(sqrt(num / den), 0.15);
        case_close(&c);
        rig_close(&r);
    }
    free(first);
}
END_TEST

/* A saved model, read again, gives the same bits. */
START_TEST(saves_and_loads)
{
    struct rig r, again;
    struct test_case c;
    struct error err = { 0 };
    struct model_loss a = { 0 }, b = { 0 };
    char dir[] = "/tmp/rm-model-XXXXXX", command[100], more[2000];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    open_case(&r, &c, _i, ACT_LAYER, "");
    ck_assert_msg(model_save(r.m, dir, &err) == OK, "%s", err.text);
    ck_assert_int_eq(model_row(r.m, &c.row, &err), OK);
    ck_assert_int_eq(model_eval(r.m, &a, &err), OK);
    const char *from = cases[_i].base ? fixture(cases[_i].base) : dir;
    if (cases[_i].base) (void)snprintf(more, sizeof more, ",\"torch_dtype\":\"float32\",\"lora_dropout\":0,\"resume_from_checkpoint\":\"%s\",%s", dir, cases[_i].more);
    else (void)snprintf(more, sizeof more, ",\"torch_dtype\":\"float32\",\"tuner_type\":\"full\"");
    ck_assert_msg(rig_open(&again, from, more, ACT_NONE, c.row.T, c.row.n_docs, &err) == OK, "%s", err.text);
    ck_assert_msg(model_load(again.m, from, &err) == OK, "%s", err.text);
    ck_assert_msg(model_load_checkpoint(again.m, dir, &err) == OK, "%s", err.text);
    ck_assert_int_eq(model_row(again.m, &c.row, &err), OK);
    ck_assert_int_eq(model_eval(again.m, &b, &err), OK);
    ck_assert(a.loss_sum == b.loss_sum);
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
    case_close(&c);
    rig_close(&r);
    rig_close(&again);
}
END_TEST

/* Token by token through the cache gives the logits of the whole row; greedy continuations repeat. */
START_TEST(samples)
{
    struct rig r;
    struct test_case c;
    struct error err = { 0 };
    open_case(&r, &c, _i, _i % 2 ? ACT_NONE : ACT_LAYER, "");
    struct sampler *s;
    struct arena a;
    int64_t V = r.config.V, n = c.row.cu[1];           /* document 0 */
    arena_init(&a, PLACE_DEVICE, NULL, 0);
    ck_assert_int_eq(sampler_new(&s, r.m, n + 6, &a, &err), OK);
    sampler_free(s);
    int64_t bytes = a.peak;
    arena_release_all(&a);
    void *memory = aligned_alloc(4096, (size_t)(bytes + 4096) / 4096 * 4096);
    arena_init(&a, PLACE_DEVICE, memory, bytes);
    ck_assert_int_eq(sampler_new(&s, r.m, n + 6, &a, &err), OK);

    float *want = xcalloc((unsigned long)V, sizeof *want), *got = xcalloc((unsigned long)V, sizeof *got);
    if (r.config.rope.type != ROPE_DYNAMIC) {           /* there the row's length decides the angles, here the cache's */
        ck_assert_int_eq(model_row(r.m, &c.row, &err), OK);
        ck_assert_int_eq(model_logits(r.m, n - 1, 1, want, &err), OK);
        ck_assert_msg(sampler_logits(s, c.row.ids, n, got, &err) == OK, "%s", err.text);
        for (int64_t i = 0; i < V; i++) ck_assert_msg(fabsf(want[i] - got[i]) <= 1e-5f * (1 + fabsf(want[i])), "logit %lld: %g, %g", (long long)i, (double)want[i], (double)got[i]);
    }
    int32_t ids[40], out[6], again[6];
    int64_t n_out, n_again;
    struct sample_options o = { .max_new = 6 };
    ck_assert_int_eq(sampler_run(s, c.row.ids, n, &o, out, &n_out, &err), OK);
    ck_assert_int_eq(n_out, 6);
    for (int64_t i = 0; i < n; i++) ids[i] = c.row.ids[i];
    for (int64_t i = 0; i < 6; i++) {                   /* the same, each time from the start */
        struct sample_options one = { .max_new = 1 };
        ck_assert_int_eq(sampler_run(s, ids, n + i, &one, &ids[n + i], &n_again, &err), OK);
        ck_assert_int_eq(ids[n + i], out[i]);
    }
    struct sample_options stop = { .max_new = 6, .stop = &out[3], .n_stop = 1 }, warm = { .max_new = 6, .temperature = 1.5, .seed = 3 };
    ck_assert_int_eq(sampler_run(s, c.row.ids, n, &stop, again, &n_again, &err), OK);
    ck_assert_int_le(n_again, 3);
    ck_assert_int_eq(sampler_run(s, c.row.ids, n, &warm, again, &n_again, &err), OK);
    ck_assert_int_eq(sampler_run(s, c.row.ids, n, &warm, out, &n_out, &err), OK);
    for (int64_t i = 0; i < 6; i++) ck_assert_int_eq(again[i], out[i]);
    ck_assert_int_eq(sampler_run(s, c.row.ids, n + 7, &o, out, &n_out, &err), E_LIMIT);
    free(want);
    free(got);
    sampler_free(s);
    free(memory);
    case_close(&c);
    rig_close(&r);
}
END_TEST

/* An adapter folded into its base gives the adapter's logits, and not the base's. Heads trained apart come out untied. */
START_TEST(merges)
{
    static const char *const adapters[][2] = { { "lora", "qwen2-tied" }, { "lora-patterns", "qwen2-tied" }, { "lora-rs-some", "qwen2-untied" }, { "lora-save", "qwen2-untied" }, { "lora-save-tied", "qwen2-tied" }, { "dora", "qwen2-untied" } };
    char dir[] = "/tmp/rm-merge-XXXXXX", out[100], command[100];
    struct error err = { 0 };
    struct rig r;
    struct test_case c;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(out, sizeof out, "%s/merged", dir);
    ck_assert_int_eq(merge_adapter(NULL, fixture(adapters[_i][0]), out, &err), E_NOTFOUND);     /* the folder PEFT named is not here */
    ck_assert_msg(merge_adapter(fixture(adapters[_i][1]), fixture(adapters[_i][0]), out, &err) == OK, "%s", err.text);
    ck_assert_int_eq(merge_adapter(fixture(adapters[_i][1]), fixture(adapters[_i][0]), out, &err), E_CONFLICT);
    case_open(&c, fixture(adapters[_i][0]));
    ck_assert_msg(rig_open(&r, out, ",\"torch_dtype\":\"float32\",\"tuner_type\":\"full\"", ACT_LAYER, c.row.T, c.row.n_docs, &err) == OK, "%s", err.text);
    ck_assert_msg(model_load(r.m, out, &err) == OK, "%s", err.text);
    ck_assert_int_eq(r.config.tied, _i < 2);
    int64_t n;
    double *want = case_get(&c, "logits", &n);
    float *logits = xcalloc((unsigned long)n, sizeof *logits);
    ck_assert_int_eq(model_row(r.m, &c.row, &err), OK);
    ck_assert_int_eq(model_logits(r.m, 0, c.row.T, logits, &err), OK);
    double e = relative(want, logits, n);
    ck_assert_msg(e <= 1e-5, "%s: merged logits are off by %.3g", adapters[_i][0], e);
    struct rig base;
    ck_assert_int_eq(rig_open(&base, fixture(adapters[_i][1]), ",\"torch_dtype\":\"float32\",\"tuner_type\":\"full\"", ACT_LAYER, c.row.T, c.row.n_docs, &err), OK);
    ck_assert_int_eq(model_load(base.m, fixture(adapters[_i][1]), &err), OK);
    ck_assert_int_eq(model_row(base.m, &c.row, &err), OK);
    ck_assert_int_eq(model_logits(base.m, 0, c.row.T, logits, &err), OK);
    ck_assert_double_ge(relative(want, logits, n), 0.01);
    rig_close(&base);
    free(want);
    free(logits);
    case_close(&c);
    rig_close(&r);
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("model-families");
    TCase *t = tcase_create("families");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, agrees_with_hugging_face, 0, N_CASES * N_POLICIES);
    tcase_add_loop_test(t, agrees_in_tiles, 0, N_CASES);
    tcase_add_loop_test(t, policies_agree_to_the_bit, 0, N_CASES);
    tcase_add_loop_test(t, only_what_is_needed, 0, N_POLICIES);
    tcase_add_loop_test(t, accumulates, 0, N_CASES);
    tcase_add_loop_test(t, saves_and_loads, 0, N_CASES);
    tcase_add_loop_test(t, samples, 0, N_CASES);
    tcase_add_loop_test(t, merges, 0, 6);
    tcase_add_loop_test(t, dropout_gradients, 0, 2);
    tcase_add_loop_test(t, bf16_full, 0, 2);
    tcase_add_test(t, bf16_lora);
    tcase_add_loop_test(t, bf16_others, 0, 2);
    tcase_add_test(t, bf16_dropout);
    suite_add_tcase(s, t);
    kernel_cpu_threads(1);
    return suite_run(s, CK_NOFORK);      /* the matrix library compiles its kernels once, not once per test */
}
