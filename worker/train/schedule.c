/* schedule.c - reference: transformers' optimization.py (the lr_lambda of each schedule, half a cosine cycle). */
#include "worker/train/schedule.h"

#include <math.h>
#include <string.h>

static const struct { const char *name; enum schedule_kind kind; } kinds[] = {
    { "constant", SCHEDULE_CONSTANT },
    { "constant_with_warmup", SCHEDULE_CONSTANT_WITH_WARMUP },
    { "linear", SCHEDULE_LINEAR },
    { "cosine", SCHEDULE_COSINE },
    { "cosine_with_min_lr", SCHEDULE_COSINE_WITH_MIN_LR },
};

void schedule_init(struct schedule *s, const struct spec *spec, int64_t total)
{
    *s = (struct schedule){ .peak = spec->learning_rate, .min_ratio = spec->min_lr_ratio, .total = total };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, spec->lr_scheduler_type) == 0) s->kind = kinds[i].kind;
    s->warmup = spec->warmup_steps > 0 ? spec->warmup_steps : (int64_t)ceil((double)total * spec->warmup_ratio);
}

static double at_least_1(int64_t n) { return n > 1 ? (double)n : 1.0; }

double schedule_lr(const struct schedule *s, int64_t step)
{
    if (s->kind == SCHEDULE_CONSTANT) return s->peak;
    if (step < s->warmup) return s->peak * ((double)step / at_least_1(s->warmup));
    double progress = (double)(step - s->warmup) / at_least_1(s->total - s->warmup), cosine;
    switch (s->kind) {
    case SCHEDULE_LINEAR:
        return s->peak * fmax(0.0, (double)(s->total - step) / at_least_1(s->total - s->warmup));
    case SCHEDULE_COSINE: case SCHEDULE_COSINE_WITH_MIN_LR:
        if (progress > 1.0) progress = 1.0;         /* a longer run than planned stays at the end */
        cosine = fmax(0.0, 0.5 * (1.0 + cos(M_PI * progress)));
        if (s->kind == SCHEDULE_COSINE_WITH_MIN_LR) cosine = cosine * (1.0 - s->min_ratio) + s->min_ratio;
        return s->peak * cosine;
    default:
        return s->peak;
    }
}
