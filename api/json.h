/* json.h - JSON from outside, read strictly; the only file that names cJSON's header.
 *
 * cJSON builds trees but is no validator: it takes trailing bytes, duplicate keys, NUL, bad UTF-8, 007, NaN, a BOM. So a
 * scanner of ours runs over every text first and refuses all of these, with line and column; what it passes, cJSON parses.
 * Look members up with json_get (case-sensitive) only. Numbers are doubles: integers beyond 2^53 are refused by json_int. */
#ifndef RM_API_JSON_H
#define RM_API_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/error.h"

struct json_limits {
    size_t bytes;               /* longest text */
    int depth;                  /* deepest nesting */
    size_t values;              /* most values (objects, arrays, scalars) */
};
extern const struct json_limits json_limits_request;    /* 1 MiB, 64 deep, 100,000 values */
extern const struct json_limits json_limits_file;       /* 64 MiB, 256 deep, 8,000,000 values: tokenizers, indexes, rows */

/* Checks [text, text+len) against RFC 8259 plus: valid UTF-8, no NUL (raw or \u0000 unless allow_nul), no lone surrogate
 * escapes, no duplicate keys, no BOM, finite numbers, the limits. On refusal err says "line L column C: what". */
int json_check(const char *text, size_t len, const struct json_limits *lim, bool allow_nul, struct error *err);
/* json_check, then parses. *out is the caller's: cJSON_Delete. */
int json_parse(cJSON **out, const char *text, size_t len, const struct json_limits *lim, struct error *err);
/* Reads and parses a regular file; err is prefixed with the path. */
int json_parse_file(cJSON **out, const char *path, const struct json_limits *lim, struct error *err);

cJSON *json_get(const cJSON *object, const char *key);                  /* NULL if absent; case-sensitive */
const char *json_str(const cJSON *object, const char *key);             /* NULL if absent or not a string */
/* The value of a number, read or added by the functions below (those are cJSON_Raw: cJSON prints doubles one bit off). */
bool json_number(const cJSON *v, double *out);
double json_num(const cJSON *object, const char *key, double absent);
bool json_bool(const cJSON *object, const char *key, bool absent);
/* Whole number within +-2^53; false if absent or anything else. */
bool json_int(const cJSON *object, const char *key, int64_t *out);

void json_add_int(cJSON *object, const char *key, int64_t v);           /* exact; beyond +-2^53 as a string */
void number_text(char text[32], double v);      /* the shortest %g form that reads back the same */
void json_add_num(cJSON *object, const char *key, double v);            /* NaN and Inf become null plus "<key>_nonfinite":"nan"|"inf"|"-inf" */
void json_add_str(cJSON *object, const char *key, const char *v);       /* NULL becomes null */
/* One line, no newline; numbers exact to 17 digits. The caller frees. */
char *json_line(const cJSON *value);
void json_print(cJSON *value);          /* that line on standard output; value is gone then */

/* True if [s, s+len) is valid UTF-8 (no surrogates, no over-long forms, at most U+10FFFF); else *bad is the first bad offset. */
bool utf8_valid(const char *s, size_t len, size_t *bad);
/* Puts ? in place of what is not; messages cut with %.60s stay valid so. */
void utf8_scrub(char *s);

#endif
