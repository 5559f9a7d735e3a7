/* nul.h - JSON whose strings hold NUL, through a parser whose strings end at NUL.
 *
 * Between parsing and use a NUL is the two bytes C0 80, which no valid UTF-8 holds and which decode to code point 0. */
#ifndef RM_WORKER_DATA_NUL_H
#define RM_WORKER_DATA_NUL_H

#include "api/json.h"
#include "worker/data/unicode.h"

/* As json_parse, but \u0000 is taken: strings hold C0 80 for it. */
int nul_parse(cJSON **out, const char *text, size_t len, const struct json_limits *lim, struct error *err);
/* C0 80 becomes NUL, in place; returns the length. s[length] is NUL. */
size_t nul_show(char *s);

#endif
