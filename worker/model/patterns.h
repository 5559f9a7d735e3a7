/* patterns.h - PEFT's rank_pattern and alpha_pattern: an object whose keys say which modules take another rank or alpha.
 *
 * A key is a regular expression for the end of a module's name, at a dot: "q_proj", "layers\\.0\\.mlp\\.up_proj". The first that matches counts. */
#ifndef RM_WORKER_MODEL_PATTERNS_H
#define RM_WORKER_MODEL_PATTERNS_H

#include "api/json.h"
#include "worker/data/regex.h"

struct pattern { struct regex *regex; char *key; double value; bool used; };
struct patterns { struct pattern *v; int n; struct regex_space *space; };

/* object: borrowed, NULL or null: no patterns. where: for messages, e.g. "rank_pattern". whole: values are whole numbers. Errors: E_INVALID. */
int patterns_open(struct patterns *p, const cJSON *object, const char *where, double min, double max, bool whole, struct error *err);
void patterns_release(struct patterns *p);
/* What applies to the module ("model.layers.0.self_attn.q_proj"): a pattern's value, or otherwise. */
int patterns_value(struct patterns *p, const char *module, double otherwise, double *out, struct error *err);
/* The key of a pattern that applied to no module so far, or NULL. */
const char *patterns_unused(const struct patterns *p);

/* Both, for rank and alpha. */
struct lora_patterns { struct patterns rank, alpha; };
/* config: an object with the keys "rank_pattern" and "alpha_pattern", or one of them, or none. where: its file, or "" for the spec. */
int lora_patterns_open(struct lora_patterns *p, const cJSON *config, const char *where, struct error *err);
void lora_patterns_release(struct lora_patterns *p);
/* Rank and scale of the module's adapter, given those of modules that no pattern names. */
int lora_patterns_of(struct lora_patterns *p, const char *module, int64_t rank, double alpha, bool rslora, int64_t *r, float *scale, struct error *err);

#endif
