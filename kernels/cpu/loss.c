/* loss.c - cross-entropy over the vocabulary, loss and gradient in one visit of a row. */
#include "kernels/cpu/isa.h"

/* Largest logit of a row and its first place; a NaN anywhere makes the sum below NaN, which is what the caller must see. */
static float row_max(enum dtype dt, const void *z, int64_t at, int64_t V)
{
    float tmp[BLOCK], best = -INFINITY;
    for (int64_t c0 = 0; c0 < V; c0 += BLOCK) {
        int64_t cn = min64(BLOCK, V - c0);
        const float *v = block_in(dt, tmp, z, at + c0, cn);
        float m = -INFINITY;
        #pragma omp simd reduction(max:m)
        for (int64_t c = 0; c < cn; c++) m = v[c] > m ? v[c] : m;
        best = m > best ? m : best;
    }
    return best;
}

static float logit(enum dtype dt, const void *z, int64_t i) { return dt == DT_F32 ? ((const float *)z)[i] : from_bf16(((const bf16 *)z)[i]); }

/* True when no place before `label` holds a logit as large. */
static bool first_best(enum dtype dt, const void *z, int64_t at, int64_t label, float max)
{
    if (logit(dt, z, at + label) != max) return false;
    for (int64_t c = 0; c < label; c++)
        if (logit(dt, z, at + c) == max) return false;
    return true;
}

static double row_sum_exp(enum dtype dt, const void *z, int64_t at, int64_t V, float max)
{
    float tmp[BLOCK];
    double total = 0.0;                                 /* f32 within a block, f64 across: V is large */
    for (int64_t c0 = 0; c0 < V; c0 += BLOCK) {
        int64_t cn = min64(BLOCK, V - c0);
        const float *v = block_in(dt, tmp, z, at + c0, cn);
        float sum = 0.0f;
        #pragma omp simd reduction(+:sum)
        for (int64_t c = 0; c < cn; c++) sum += exp_f32(v[c] - max);
        total += sum;
    }
    return total;
}

/* z = factor * softmax(z), with e^max * sum as the denominator; then the label's place loses factor. */
static void row_grad(enum dtype dt, void *z, int64_t at, int64_t V, int64_t label, float max, float inv, float factor)
{
    float tmp[BLOCK], res[BLOCK], p = exp_f32(logit(dt, z, at + label) - max) * inv;
    for (int64_t c0 = 0; c0 < V; c0 += BLOCK) {
        int64_t cn = min64(BLOCK, V - c0);
        const float *v = block_in(dt, tmp, z, at + c0, cn);
        float *out = block_out(dt, res, z, at + c0);
        #pragma omp simd
        for (int64_t c = 0; c < cn; c++) out[c] = factor * (exp_f32(v[c] - max) * inv);
        if (label >= c0 && label < c0 + cn) out[label - c0] = factor * (p - 1.0f);
        block_done(dt, z, at + c0, out, cn);
    }
}

static int cross_entropy(struct stream *s, enum dtype dt, float *loss, uint8_t *correct, void *z, const int32_t *labels, const float *weight,
                         float scale, bool grad, int64_t N, int64_t V)
{
    if (dt != DT_F32 && dt != DT_BF16) return cpu_refuse(s, "cross_entropy: type %s is not supported", dtype_name(dt));
    if (V < 1 && N > 0) return cpu_refuse(s, "cross_entropy: V %lld, expected 1 or more", (long long)V);
    #pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_threads(blocks_of(N * V, 8 * BLOCK)))
    for (int64_t n = 0; n < N; n++) {
        int64_t label = labels[n], at = n * V;
        if (label < 0 || label >= V) {                  /* >= V is the caller's bug; it must not become a wild write */
            loss[n] = label < 0 ? 0.0f : NAN;
            if (correct) correct[n] = 0;
            if (grad) memset((char *)z + (size_t)at * dtype_size(dt), 0, (size_t)V * dtype_size(dt));
            continue;
        }
        float max = row_max(dt, z, at, V);
        double sum = row_sum_exp(dt, z, at, V, max);
        loss[n] = weight[n] * (float)(log(sum) + (double)max - (double)logit(dt, z, at + label));
        if (correct) correct[n] = first_best(dt, z, at, label, max);
        if (grad) row_grad(dt, z, at, V, label, max, (float)(1.0 / sum), scale * weight[n]);
    }
    return OK;
}

void ISA(fill_loss)(struct kernel_ops *ops) { ops->cross_entropy = cross_entropy; }
