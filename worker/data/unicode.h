/* unicode.h - code points, their properties and normal forms; unicode.c alone includes utf8proc.
 *
 * Every text here is valid UTF-8 (the border checks it once), so decoding needs no error path. The properties are those that
 * the Rust standard library and its regex crate give, because Hugging Face `tokenizers` asks them. */
#ifndef RM_WORKER_DATA_UNICODE_H
#define RM_WORKER_DATA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/error.h"

/* Growing bytes; zero-initialise. Not NUL-terminated. bytes_release frees. */
struct bytes { char *v; size_t n, cap; };
void bytes_release(struct bytes *b);
void bytes_need(struct bytes *b, size_t more);              /* room for more bytes after n */
void bytes_add(struct bytes *b, const void *p, size_t n);
void bytes_add_char(struct bytes *b, char c);
void bytes_add_cp(struct bytes *b, uint32_t cp);

/* The code point at *s, which has at least one byte; returns its length in bytes. */
size_t utf8_next(const char *s, uint32_t *cp);
size_t utf8_put(char out[4], uint32_t cp);                  /* bytes written */
/* Start of the character that ends just before s+n; n > 0. */
size_t utf8_prev(const char *s, size_t n, uint32_t *cp);
/* Copies, with U+FFFD for each maximal part that is no UTF-8 (what Rust's from_utf8_lossy gives). */
void utf8_lossy(struct bytes *out, const char *s, size_t n);

/* What the libraries here do not know yet, by code point. */
struct unicode_range { uint32_t first, last; char category[3]; };
extern const struct unicode_range unicode_newer[];
extern const int unicode_newer_n;
bool unicode_after_9(uint32_t cp);
bool unicode_punct_differs(uint32_t cp);
uint32_t unicode_lower_newer(uint32_t cp);              /* for upper-case letters of Unicode 15 to 17; any other is its own */

bool cp_is_space(uint32_t cp);          /* White_Space */
bool cp_is_numeric(uint32_t cp);        /* N: Nd, Nl, No */
bool cp_is_punct(uint32_t cp);          /* P, or ASCII punctuation */
bool cp_is_mark(uint32_t cp);           /* M: Mn, Mc, Me */
bool cp_is_word(uint32_t cp);           /* \w of Rust's regex: Alphabetic, M, Nd, Pc, Join_Control */

enum normal_form { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD };
/* Replaces *out by the normal form of [s, s+n). E_LIMIT when it would not fit in memory's bounds. */
int unicode_normalize(enum normal_form form, const char *s, size_t n, struct bytes *out, struct error *err);
/* True where a quick look shows that the text already is in form (never wrongly true). */
bool unicode_is_normal(enum normal_form form, const char *s, size_t n);
/* Appends the lower case of every code point alone: no context, as Rust's char::to_lowercase. */
void unicode_lower(const char *s, size_t n, struct bytes *out);

#endif
