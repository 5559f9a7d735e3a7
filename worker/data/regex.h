/* regex.h - the regular expressions of tokenizer.json, matched by PCRE2's compiler to machine code.
 *
 * tokenizer.json's patterns are Oniguruma's. regex_syntax.c rewrites them to PCRE2's syntax with Oniguruma's meaning; what it does
 * not know is refused by name. A pattern that backtracks without end is stopped and reported, never waited for. */
#ifndef RM_WORKER_DATA_REGEX_H
#define RM_WORKER_DATA_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#include "api/error.h"
#include "worker/data/unicode.h"

struct regex;                   /* immutable: threads may share it */
struct regex_space;             /* what one match at a time needs; one per thread */

/* pattern: valid UTF-8, Oniguruma syntax. */
int regex_open(struct regex **r, const char *pattern, size_t len, struct error *err);
int regex_open_literal(struct regex **r, const char *text, size_t len, struct error *err);
void regex_free(struct regex *r);
struct regex_space *regex_space_new(void);
void regex_space_free(struct regex_space *s);

/* All matches, left to right, as Rust's onig find_iter: an empty match right after a match is skipped. Zero-initialise *it.
 * *found false at the end. text: valid UTF-8. E_LIMIT when the pattern takes too many steps. */
struct regex_iter { size_t at, last_end; bool any; };
int regex_next(const struct regex *r, struct regex_space *space, const char *text, size_t len, struct regex_iter *it, size_t *start,
               size_t *end, bool *found, struct error *err);

/* regex_syntax.c: appends the PCRE2 pattern with the same meaning to *out. has_property(name) tells whether PCRE2 knows \p{name}. */
int regex_translate(const char *pattern, size_t len, bool (*has_property)(const char *name), struct bytes *out, struct error *err);

#endif
