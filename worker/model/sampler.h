/* sampler.h - continues token sequences with a model, one token at a time, on one rank without its group.
 *
 * Keys and values of what was read stay in a cache; activations borrow the model's own scratch, so sampling stands between two steps
 * and the next model_row starts afresh. It changes nothing that training sees: weights, gradients and dropout are untouched. */
#ifndef RM_WORKER_MODEL_SAMPLER_H
#define RM_WORKER_MODEL_SAMPLER_H

#include "worker/model/model.h"

struct sampler;

struct sample_options {
    double temperature;         /* 0: greedy */
    uint64_t seed;              /* the same seed, the same continuation */
    int64_t max_new;
    const int32_t *stop;        /* ids that end the continuation (and are not part of it) */
    int64_t n_stop;
};

/* The cache for sequences of at most max_len tokens, prompt included, from the arena (recording: nothing else may be called then). */
int sampler_new(struct sampler **s, struct model *m, int64_t max_len, struct arena *device, struct error *err);
void sampler_free(struct sampler *s);
/* out gets at most options->max_new ids, *n_out of them; fewer at a stop id or when the cache is full. */
int sampler_run(struct sampler *s, const int32_t *prompt, int64_t n, const struct sample_options *options, int32_t *out, int64_t *n_out, struct error *err);
/* Logits f32 [V] (host) after the prompt, for tests and tools. */
int sampler_logits(struct sampler *s, const int32_t *prompt, int64_t n, float *logits, struct error *err);

#endif
