/* import_rules.h - shared by the importers: the rule table and the result they fill. Private to api/import*.c. */
#ifndef RM_API_IMPORT_RULES_H
#define RM_API_IMPORT_RULES_H

#include "api/import.h"
#include "api/spec.h"

struct flag {                   /* as it was written */
    const char *name;           /* without dashes, - turned into _ */
    const char *shown;          /* "--max_length", "NPROC_PER_NODE", "max_length" */
    char **value; int n;
};

struct import {
    const struct rule *rules; int n_rules;
    cJSON *spec, *flags, *defaults;
    bool unsupported;
    /* collected on the way, settled at the end */
    bool ulysses, ring, nproc_given;
    double ulysses_seq_len;
    int visible_devices;
    double max_samples;
};

enum rule_kind { RULE_KEEP, RULE_RENAME, RULE_IGNORE, RULE_UNSUPPORTED, RULE_UNLESS /* ignored if the value is `arg`, else unsupported */, RULE_CALL };
struct rule {
    const char *names;          /* "a|b" */
    enum rule_kind kind;
    const char *arg;            /* RENAME: field; UNLESS: harmless values "a|b" */
    const char *why;
    void (*call)(struct import *im, const struct flag *f);
};

void import_begin(struct import *im, const struct rule *rules, int n);
void import_flag(struct import *im, const struct flag *f);
/* Checks the spec as a whole; a problem turns its flag unsupported. *out takes everything. */
void import_end(struct import *im, cJSON **out);

void import_report(struct import *im, const struct flag *f, const char *status, const char *field, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void import_default(struct import *im, const char *field, cJSON *value, const char *why);       /* takes value; only if the field is not set */
void import_set(struct import *im, const char *field, cJSON *value);                            /* takes value */
/* The flag's words as the value the field wants; NULL and reported if they cannot be. */
cJSON *import_value(struct import *im, const struct flag *f, const struct field *to);
const char *import_text(const struct flag *f);      /* first word, or "" */
bool import_true(const struct flag *f);             /* no word at all is true, as a switch */
bool import_one_of(const char *word, const char *list);     /* list "a|b" */

void import_set_text(struct import *im, const char *field, const char *v);
void import_set_int(struct import *im, const char *field, int64_t v);
/* Rules both tools have: save_strategy and eval_strategy; max_steps, where 0 or less means no limit. */
void import_take_strategy(struct import *im, const struct flag *f);
void import_take_steps(struct import *im, const struct flag *f);

#endif
