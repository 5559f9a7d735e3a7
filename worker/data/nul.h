/* nul.h - JSON whose strings hold NUL, through a parser whose strings end at NUL.
 *
 * Before parsing, every \u0000 escape becomes a code point that the text does not contain; after, that one becomes NUL again. */
#ifndef RM_WORKER_DATA_NUL_H
#define RM_WORKER_DATA_NUL_H

#include "worker/data/unicode.h"

/* Replaces *out by the JSON text without \u0000 (NUL-terminated beyond n). *stand_in: the code point used, 0 if there was none. */
int nul_hide(const char *json, size_t len, struct bytes *out, uint32_t *stand_in, struct error *err);
/* In place; returns the length. s[length] becomes NUL. */
size_t nul_show(char *s, uint32_t stand_in);

#endif
