/* encode.h - one sample into token ids and which of them are trained. */
#ifndef RM_WORKER_DATA_ENCODE_H
#define RM_WORKER_DATA_ENCODE_H

#include "worker/data/dataset.h"
#include "worker/data/template.h"
#include "worker/data/tokenizer.h"

enum loss_scale { LOSS_DEFAULT, LOSS_LAST_ROUND, LOSS_ALL, LOSS_IGNORE_EMPTY_THINK };

struct encoder { const struct tokenizer *tok; const struct chat_template *tmpl; enum loss_scale loss_scale; };

struct span { int32_t from, to; float weight; };        /* tokens [from,to) are trained with weight; ascending, disjoint */
struct encoded {                /* zero-initialise; encode_sample empties it; encoded_release frees */
    struct ids ids;
    struct span *spans;
    int n_spans, cap_spans;
};
void encoded_release(struct encoded *e);

/* "default" … as in the spec; -1 if unknown. */
int loss_scale_named(const char *name);
/* Tokens of the whole sample and the spans to train. Which bytes belong to an assistant's turn is found by rendering: a turn is trained
 * from the end of its prompt (the conversation before it with the generation prompt) to the end of its end-of-turn mark. */
int encode_sample(const struct encoder *e, const struct sample *s, struct encoded *out, struct error *err);

#endif
