/* jinja.h - the Jinja that chat templates are written in, as transformers sets Python's Jinja2 up: trim_blocks, lstrip_blocks, loop
 * controls, {% generation %}, raise_exception, strftime_now, tojson = json.dumps; immutable sandbox; no files, no imports.
 *
 * Templates come from strangers: steps, memory, output and depth are bounded, and a template that passes a bound ends with an error. */
#ifndef RM_WORKER_DATA_JINJA_H
#define RM_WORKER_DATA_JINJA_H

#include "worker/data/template.h"

struct jinja;                   /* a compiled template; immutable: threads may share it */

/* err: "line L: what". Borrows nothing. */
int jinja_compile(struct jinja **t, const char *source, size_t len, struct error *err);
void jinja_free(struct jinja *t);
bool jinja_marks_generation(const struct jinja *t);
struct jinja_limits { int64_t steps; size_t memory, output; };  /* memory and output in bytes */
extern const struct jinja_limits jinja_limits_default;          /* 6,000,000 steps, 1 GiB, 256 MiB */
/* Renders with the variables of context (V_DICT) into *out (emptied first). Errors: E_INVALID "line L: what", E_LIMIT past a bound.
 * now: for strftime_now, seconds since 1970; -1 takes the clock. */
int jinja_render(const struct jinja *t, struct value context, int64_t now, const struct jinja_limits *limits, struct rendered *out, struct error *err);

#endif
