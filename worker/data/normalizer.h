/* normalizer.h - tokenizer.json's "normalizer": text rewritten before anything is split. */
#ifndef RM_WORKER_DATA_NORMALIZER_H
#define RM_WORKER_DATA_NORMALIZER_H

#include <stdbool.h>

#include "api/error.h"
#include "worker/data/regex.h"
#include "worker/data/unicode.h"

struct cJSON;
struct normalizer;              /* immutable; NULL does nothing */

struct normalizer_space { struct bytes a, b; struct regex_space *regex; };  /* regex: borrowed */

/* value: the JSON object, or null/absent for none (then *out is NULL). key: where it stands, for messages. */
int normalizer_open(struct normalizer **out, const struct cJSON *value, const char *key, struct error *err);
void normalizer_free(struct normalizer *n);
/* *out points to the result: the text itself or a buffer of the space, good until its next use. *moved: its first character is not
 * the text's first any more (Metaspace's "first" asks for the text's). */
int normalizer_run(const struct normalizer *n, struct normalizer_space *space, const char *text, size_t len, const char **out,
                   size_t *out_len, bool *moved, struct error *err);

/* "pattern": {"String": …} or {"Regex": …}, used here and by the pre-tokenizers and decoders. */
int pattern_open(struct regex **out, const struct cJSON *step, const char *key, struct error *err);
/* What a text of len bytes may grow to, in bytes, over all steps: a file of doubling replacements is stopped there. */
size_t growth_limit(size_t len);
/* Appends text with every match replaced; E_LIMIT if *out passes most bytes. */
int pattern_replace(const struct regex *r, struct regex_space *space, const char *text, size_t len, const char *content, size_t content_len,
                    size_t most, struct bytes *out, struct error *err);

#endif
