/* added.h - added tokens: strings found in the text before anything else looks at it.
 *
 * Two sets: those searched in the text as it came, and those ("normalized") searched after the normalizer has run. In each the
 * match that starts first wins, and of those the longest. */
#ifndef RM_WORKER_DATA_ADDED_H
#define RM_WORKER_DATA_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/error.h"

struct added_token {
    char *content;
    size_t len;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

struct added_set;               /* immutable once filled */

struct added_set *added_set_new(void);
void added_set_free(struct added_set *s);
/* spelling: what is searched for (the content, or its normalized form). Borrows token. */
int added_set_add(struct added_set *s, const char *spelling, size_t len, const struct added_token *token, struct error *err);
/* Calls piece for every stretch in order: token NULL for plain text. */
int added_set_split(const struct added_set *s, const char *text, size_t len,
                    int (*piece)(void *arg, const char *text, size_t len, size_t at, const struct added_token *token, struct error *err), void *arg,
                    struct error *err);

#endif
