/* tokenizer_file.h - tokenizer.json read once, front to back: vocabulary and merges straight into the BPE tables.
 *
 * A tree of a 150,000-entry vocabulary would take 100 MB and a second; here only the small members become trees. api/json's
 * scanner has checked the whole text first, so what follows it cannot meet bad syntax. */
#ifndef RM_WORKER_DATA_TOKENIZER_FILE_H
#define RM_WORKER_DATA_TOKENIZER_FILE_H

#include "api/error.h"
#include "worker/data/bpe.h"

struct cJSON;

struct tokenizer_file {
    struct cJSON *members;      /* normalizer, pre_tokenizer, post_processor, decoder, added_tokens: those present */
    struct cJSON *model;        /* model's members but vocab and merges */
    struct bpe *bpe;            /* vocabulary and merges in; bpe_ready not yet called */
};

/* Members are the caller's: tokenizer_file_release, or taken over by setting them NULL. err names the key. */
int tokenizer_file_read(struct tokenizer_file *f, const char *text, size_t len, struct error *err);
void tokenizer_file_release(struct tokenizer_file *f);

#endif
