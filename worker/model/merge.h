/* merge.h - an adapter folded into its base model: a Hugging Face folder that needs no PEFT. */
#ifndef RM_WORKER_MODEL_MERGE_H
#define RM_WORKER_MODEL_MERGE_H

#include "api/error.h"

/* Writes `out` (must not exist) from `adapter`, a PEFT folder, and `base` (NULL: the folder adapter_config.json names). Weights
 * become W + s B A (DoRA: m (W + s B A) / |W + s B A| by row), computed in f32, stored in the base's own types; modules that were
 * trained whole replace theirs. A tied head is untied in config.json when either end was trained whole. Tokenizer and other small
 * files come along, the adapter's own first. `out` appears whole or not at all. */
int merge_adapter(const char *base, const char *adapter, const char *out, struct error *err);

#endif
