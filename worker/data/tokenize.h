/* tokenize.h - what the tools say about a tokenizer. */
#ifndef RM_WORKER_DATA_TOKENIZE_H
#define RM_WORKER_DATA_TOKENIZE_H

#include "api/error.h"

/* Opens the tokenizer of a folder or file, as training would, and encodes and decodes a sample with it. *summary: one line; the
 * caller frees. */
int tokenizer_check(const char *path, char **summary, struct error *err);

#endif
