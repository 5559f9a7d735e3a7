/* targets.h - which modules LoRA adapts and which are trained whole, by PEFT's rules for target_modules and modules_to_save. */
#ifndef RM_WORKER_MODEL_TARGETS_H
#define RM_WORKER_MODEL_TARGETS_H

#include "api/spec.h"
#include "worker/data/regex.h"

struct targets {
    const struct spec *spec;
    bool all_linear;
    struct regex *pattern;      /* one regular expression for whole module names, or NULL: a list of names */
    struct regex_space *space;
    int64_t hits;               /* of the pattern */
    bool *used, *saved_used;    /* by list entry */
};

int targets_init(struct targets *t, const struct spec *spec, struct error *err);
void targets_release(struct targets *t);
/* Does the linear module ("model.layers.0.self_attn.q_proj") get an adapter? Never one that is trained whole. */
int targets_match(struct targets *t, const char *module, bool *out, struct error *err);
/* Is the module trained whole? */
bool targets_saved(struct targets *t, const char *module);
/* E_INVALID for an entry that matched nothing. */
int targets_all_used(const struct targets *t, struct error *err);

#endif
