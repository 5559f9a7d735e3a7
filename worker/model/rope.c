/* rope.c - inverse frequencies of rotary embeddings, every type we read, in f64.
 *
 * Sources: linear: Chen et al. 2306.15595; dynamic: NTK-aware scaling as in transformers (stateless here: from the
 * document's own length, so that its angles depend on nothing that stands beside it or came before); yarn: Peng et al. 2309.00071; llama3: the
 * Llama 3.1 model card's formula. */
#include <math.h>

#include "worker/model/config.h"

#define PI 3.14159265358979323846

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* The (fractional) dimension that turns `rotations` times over the original length. */
static double yarn_dim(double rotations, double D, double theta, double original)
{
    return D * log(original / (rotations * 2 * PI)) / (2 * log(theta));
}

static void yarn(const struct rope_config *p, int64_t D, double *f, double *factor)
{
    double low = yarn_dim(p->beta_fast, (double)D, p->theta, (double)p->original_max);
    double high = yarn_dim(p->beta_slow, (double)D, p->theta, (double)p->original_max);
    if (p->truncate) { low = floor(low); high = ceil(high); }
    low = fmax(low, 0);
    high = fmin(high, (double)(D - 1));
    if (low == high) high += 0.001;                     /* as the paper's code: no division by zero */
    for (int64_t i = 0; i < D / 2; i++) {
        double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);   /* 0: fast dimensions, kept; 1: slow, interpolated */
        f[i] = f[i] / p->factor * ramp + f[i] * (1 - ramp);
    }
    if (p->attention_factor >= 0) *factor = p->attention_factor;
    else if (p->mscale != 0 && p->mscale_all_dim != 0) *factor = yarn_mscale(p->factor, p->mscale) / yarn_mscale(p->factor, p->mscale_all_dim);
    else *factor = yarn_mscale(p->factor, 1);
}

static void llama3(const struct rope_config *p, int64_t D, double *f)
{
    double old = (double)p->original_max;
    for (int64_t i = 0; i < D / 2; i++) {
        double wave = 2 * PI / f[i];
        if (wave > old / p->low_freq_factor) f[i] /= p->factor;
        else if (wave >= old / p->high_freq_factor) {
            double smooth = (old / wave - p->low_freq_factor) / (p->high_freq_factor - p->low_freq_factor);
            f[i] = (1 - smooth) * f[i] / p->factor + smooth * f[i];
        }
    }
}

void model_config_rope(const struct model_config *c, int64_t length, double *inv_freq, double *factor)
{
    const struct rope_config *p = &c->rope;
    double theta = p->theta, D = (double)c->D;
    *factor = 1;
    if (p->type == ROPE_DYNAMIC && c->D > 2) {
        double len = fmax((double)length, (double)c->max_positions);
        theta *= pow(p->factor * len / (double)c->max_positions - (p->factor - 1), D / (D - 2));
    }
    for (int64_t i = 0; i < c->D / 2; i++) inv_freq[i] = pow(theta, -2.0 * (double)i / D);
    if (p->type == ROPE_LINEAR) for (int64_t i = 0; i < c->D / 2; i++) inv_freq[i] /= p->factor;
    if (p->type == ROPE_YARN) yarn(p, c->D, inv_freq, factor);
    if (p->type == ROPE_LLAMA3) llama3(p, c->D, inv_freq);
}
