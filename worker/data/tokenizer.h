/* tokenizer.h - text to ids and back, from a Hugging Face tokenizer.json (BPE), exactly as the `tokenizers` library does it. */
#ifndef RM_WORKER_DATA_TOKENIZER_H
#define RM_WORKER_DATA_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/error.h"

struct tokenizer;               /* immutable after open: threads may share it */

struct ids { int32_t *v; int64_t n, cap; };             /* zero-initialise; grows; ids_release frees */
void ids_release(struct ids *ids);

/* path: a folder with tokenizer.json (and, if there, tokenizer_config.json, special_tokens_map.json, generation_config.json), or
 * the tokenizer.json itself. What it does not know is refused by name. */
int tokenizer_open(struct tokenizer **t, const char *path, struct error *err);
/* The same from a tokenizer.json in memory, with nothing beside it. */
int tokenizer_open_text(struct tokenizer **t, const char *text, size_t len, struct error *err);
void tokenizer_free(struct tokenizer *t);
/* Appends the ids of text (valid UTF-8; NUL allowed) to *out. special: add what the post-processor adds (BOS …). Added tokens
 * inside the text are found either way. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special, struct ids *out, struct error *err);
/* *text gets a NUL after *len bytes; the caller frees. Bytes that form no UTF-8 become U+FFFD, as in Hugging Face. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t n, bool skip_special, char **text, size_t *len, struct error *err);
int32_t tokenizer_id(const struct tokenizer *t, const char *token);     /* -1 if there is none */
const char *tokenizer_token(const struct tokenizer *t, int32_t id);     /* NULL if there is none; the vocabulary's own spelling */
int64_t tokenizer_size(const struct tokenizer *t);                      /* largest id + 1 */
/* Whether a model of vocab entries has one for every id of the vocabulary (added tokens may lie beyond); E_INVALID names both numbers. */
int tokenizer_fits(const struct tokenizer *t, int64_t vocab, struct error *err);
/* From tokenizer_config.json / special_tokens_map.json; -1 / NULL where they say nothing. pad falls back to eos. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
int32_t tokenizer_pad(const struct tokenizer *t);

#endif
