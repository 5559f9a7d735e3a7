/* tokenize.h - what the tools say about a tokenizer. */
#ifndef RM_WORKER_DATA_TOKENIZE_H
#define RM_WORKER_DATA_TOKENIZE_H

#include <stdint.h>

#include "api/error.h"

/* Opens the tokenizer of a folder or file, as training would, and encodes and decodes a sample with it. vocab: entries of the
 * model it belongs to, INT64_MAX if unknown; more ids than that are E_INVALID. *summary: one line; the caller frees. */
int tokenizer_check(const char *path, int64_t vocab, char **summary, struct error *err);

#endif
