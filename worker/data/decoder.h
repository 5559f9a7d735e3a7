/* decoder.h - tokenizer.json's "decoder": token spellings back to text. */
#ifndef RM_WORKER_DATA_DECODER_H
#define RM_WORKER_DATA_DECODER_H

#include "api/error.h"
#include "worker/data/unicode.h"

struct cJSON;
struct decoder;                 /* immutable; NULL joins the tokens with blanks, as in Hugging Face */

/* A list of strings: string i is text[ends[i-1], ends[i]). Zero-initialise. */
struct strings { struct bytes text; size_t *ends; size_t n, cap; };
void strings_release(struct strings *s);
void strings_end(struct strings *s);            /* what was added to text since the last end is one more string */

int decoder_open(struct decoder **out, const struct cJSON *value, const char *key, struct error *err);
void decoder_free(struct decoder *d);
/* Replaces *tokens; the text to show is their concatenation. */
int decoder_run(const struct decoder *d, struct strings *tokens, struct error *err);

#endif
