/* corpus.h - a tokenized data set: documents as ids and trained spans, in memory or mapped from the cache on disk. */
#ifndef RM_WORKER_DATA_CORPUS_H
#define RM_WORKER_DATA_CORPUS_H

#include "worker/data/encode.h"

enum truncation { TRUNCATE_DELETE, TRUNCATE_LEFT, TRUNCATE_RIGHT, TRUNCATE_SPLIT };

struct document { int64_t id0, span0; int32_t n_ids, n_spans; int64_t sample; };

struct corpus {                 /* zero-initialise; corpus_release frees */
    int32_t *ids;
    struct span *spans;         /* token indexes inside their document */
    struct document *docs;
    int64_t n_ids, n_spans, n_docs, cap_ids, cap_spans, cap_docs;
    int64_t dropped_long, dropped_untrained, samples;
    void *map;                  /* when read from a cache file: the arrays point into it */
    size_t map_bytes;
};
void corpus_release(struct corpus *c);

int truncation_named(const char *name);         /* -1 if unknown */
/* Adds one encoded sample. Longer than max_length: delete drops it (plain text is split instead: a book is no outlier), left keeps its last
 * max_length tokens, right its first, split makes several documents. What then has nothing to train is dropped and counted. */
void corpus_add(struct corpus *c, const struct encoded *e, bool is_text, int64_t sample, int64_t max_length, enum truncation how);
/* Label and weight of every position of document i, shifted: out[t] is what is predicted at t. */
void corpus_labels(const struct corpus *c, int64_t i, int32_t *labels, float *weights);
int64_t corpus_trained(const struct corpus *c, int64_t i);      /* labels != -100 */

/* cache.c: the corpus as one file; read checks every index and a checksum of the whole, and refuses what does not fit. */
int cache_write(const char *path, const struct corpus *c, const uint64_t key[2], struct error *err);
int cache_read(struct corpus *c, const char *path, const uint64_t key[2], int64_t vocab, struct error *err);

#endif
