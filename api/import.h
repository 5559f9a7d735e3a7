/* import.h - other tools' commands become job specs: ms-swift's command line or script, LLaMA-Factory's YAML.
 *
 * One table per tool says what each flag means here (import_swift.c, import_llamafactory.c); what no row names falls back on the spec
 * table (same name: kept; alias: translated), and what that does not know is reported as unsupported. Nothing is dropped silently.
 * The result is {"spec":{…}, "supported":bool, "flags":[{"flag","value","status","why","field"}], "defaults":[{"field","value","why"}],
 * "problems":[…]}: status is kept | translated | ignored | unsupported; supported is false as soon as one flag is not. Defaults of the other tool that differ from ours
 * are written into the spec and listed. Paths stay as written: relative to where the command would have run. */
#ifndef RM_API_IMPORT_H
#define RM_API_IMPORT_H

#include "api/json.h"

enum { IMPORT_MAX_BYTES = 1 << 20 };

/* A command line or a whole shell script: environment lines, exports, variables, quotes, continuations, comments. E_INVALID with
 * a message if there is no training command in it or it is no text. */
int import_swift(cJSON **out, const char *text, size_t len, struct error *err);
/* The same, already cut into words by a shell. */
int import_swift_words(cJSON **out, int n, char *const *words, struct error *err);
int import_llamafactory(cJSON **out, const char *yaml, size_t len, struct error *err);

#endif
