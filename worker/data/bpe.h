/* bpe.h - byte-pair encoding: a vocabulary, its merges, and one word turned into ids.
 *
 * The word starts as single characters (or bytes); the adjacent pair with the smallest rank is merged, leftmost first, until no
 * pair has a rank. Short words are scanned, long ones go through a heap: O(n log n) however long. Words already seen come from
 * a cache that belongs to the caller's thread. Order and corner cases are those of Hugging Face's models/bpe. */
#ifndef RM_WORKER_DATA_BPE_H
#define RM_WORKER_DATA_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/error.h"
#include "worker/data/tokenizer.h"
#include "worker/data/unicode.h"

#define TOKEN_ID_MAX (1 << 22)          /* ids above this are refused: tables grow with the largest id */

/* GPT-2's spelling of bytes as printable characters: byte b is written as code point byte_level_cp[b]. byte_level_ready() fills it, any number of times. */
extern uint32_t byte_level_cp[256];
void byte_level_ready(void);
int byte_level_byte(uint32_t cp);       /* the byte, or -1 */

struct bpe;                             /* immutable once bpe_ready has run */
struct bpe_space;                       /* scratch and cache; one per thread */

struct bpe_options {
    bool ignore_merges, fuse_unk, byte_fallback;
    const char *unk, *prefix, *suffix;  /* unk_token, continuing_subword_prefix, end_of_word_suffix; NULL or "": none. Borrowed until bpe_ready returns */
};

struct bpe *bpe_new(void);
void bpe_free(struct bpe *m);
/* One vocabulary entry, any order. E_INVALID: the token or the id is there already, or the id is out of range. */
int bpe_add_token(struct bpe *m, const char *token, size_t len, int64_t id, struct error *err);
/* One merge, in order of rank, after all tokens. A pair that comes twice keeps its last rank, as in Hugging Face. */
int bpe_add_merge(struct bpe *m, const char *left, size_t left_len, const char *right, size_t right_len, size_t prefix_len, struct error *err);
/* bytes: words arrive as raw bytes and stand for their byte-level spelling; only if every byte's spelling is a token and there is
 * no prefix or suffix. */
int bpe_ready(struct bpe *m, const struct bpe_options *o, bool bytes, struct error *err);

int32_t bpe_id(const struct bpe *m, const char *token, size_t len);     /* -1: none */
const char *bpe_token(const struct bpe *m, int64_t id, size_t *len);    /* NULL: none; NUL-terminated */
int64_t bpe_size(const struct bpe *m);                                  /* largest id + 1 */
int64_t bpe_count(const struct bpe *m);                                 /* entries */

struct bpe_space *bpe_space_new(void);
void bpe_space_free(struct bpe_space *s);
/* Appends the ids of one word. */
int bpe_encode(const struct bpe *m, struct bpe_space *s, const char *word, size_t len, struct ids *out, struct error *err);

void ids_add(struct ids *ids, int32_t id);

#endif
