/* template.h - a conversation as the text the model sees. */
#ifndef RM_WORKER_DATA_TEMPLATE_H
#define RM_WORKER_DATA_TEMPLATE_H

#include "worker/data/tokenizer.h"
#include "worker/data/value.h"

struct chat_template;           /* immutable after open: threads may share it */

struct byte_span { size_t from, to; };
struct rendered {               /* zero-initialise; rendered_release frees */
    struct buf text;
    struct byte_span *generated;        /* what stood inside {% generation %} blocks */
    size_t n_generated;
};
void rendered_release(struct rendered *r);

/* name: auto (model_dir's chat_template.jinja or tokenizer_config.json, else a built-in one that fits its special tokens), chatml, llama3. */
int template_open(struct chat_template **t, const char *model_dir, const char *name, const struct tokenizer *tok, struct error *err);
/* From a file that is the template itself; special tokens come with the context. */
int template_open_file(struct chat_template **t, const char *path, struct error *err);
void template_free(struct chat_template *t);
/* Renders into *out (emptied first). tools: V_LIST or V_UNDEFINED. context: more variables, V_DICT or V_UNDEFINED. A template's
 * own refusal (raise_exception) and any other failure of it is E_INVALID with its words. Thread-safe. */
int template_render(const struct chat_template *t, struct value messages, struct value tools, bool add_generation_prompt,
                    struct value context, struct rendered *out, struct error *err);
uint64_t template_hash(const struct chat_template *t);          /* of the source: part of the cache key */
/* Some templates (Llama-3's first one) end every text with the generation prompt, asked or not: what they append. *n 0: this one does not. */
const char *template_appends(const struct chat_template *t, size_t *n);
const char *template_built_in(const struct chat_template *t);   /* its name, or NULL if the model brings the template */
bool template_marks_generation(const struct chat_template *t);

#endif
