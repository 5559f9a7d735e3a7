/* pretokenizer.h - tokenizer.json's "pre_tokenizer": normalized text cut into the words that are encoded one by one. */
#ifndef RM_WORKER_DATA_PRETOKENIZER_H
#define RM_WORKER_DATA_PRETOKENIZER_H

#include <stdbool.h>

#include "api/error.h"
#include "worker/data/regex.h"

struct cJSON;
struct pretokenizer;                    /* immutable; NULL gives the whole text as one word */
struct pretokenizer_space;              /* scratch; one per thread */

int pretokenizer_open(struct pretokenizer **out, const struct cJSON *value, const char *key, struct error *err);
void pretokenizer_free(struct pretokenizer *p);
/* True if the last thing that happens is the spelling of bytes as characters (ByteLevel). raw_bytes then leaves that to the reader of the words. */
bool pretokenizer_ends_in_bytes(const struct pretokenizer *p);

struct pretokenizer_space *pretokenizer_space_new(struct regex_space *regex);      /* borrows regex */
void pretokenizer_space_free(struct pretokenizer_space *s);

/* Calls word(arg, …) for every word, in order. first: the text stands at the very start of the input (Metaspace asks). */
int pretokenizer_run(const struct pretokenizer *p, struct pretokenizer_space *s, const char *text, size_t len, bool first, bool raw_bytes,
                     int (*word)(void *arg, const char *word, size_t len, struct error *err), void *arg, struct error *err);

#endif
