/* template.c - built-in chat templates (template.h). */
#include "worker/data/template.h"

#include <stdlib.h>
#include <string.h>

struct chat_template { int llama3; };

void rendered_release(struct rendered *r)
{
    buf_release(&r->text);
    free(r->generated);
    *r = (struct rendered){ 0 };
}

int template_open(struct chat_template **t, const char *model_dir, const char *name, const struct tokenizer *tok, struct error *err)
{
    (void)model_dir;
    int llama3;
    *t = NULL;
    if (strcmp(name, "auto") == 0) llama3 = tokenizer_id(tok, "<|start_header_id|>") >= 0;
    else if (strcmp(name, "chatml") == 0) llama3 = 0;
    else if (strcmp(name, "llama3") == 0) llama3 = 1;
    else return error_set(err, E_INVALID, "template \"%s\" is not known; known are auto, chatml, llama3", name);
    *t = xcalloc(1, sizeof **t);
    (*t)->llama3 = llama3;
    return OK;
}

void template_free(struct chat_template *t) { free(t); }

int template_render(const struct chat_template *t, struct value messages, struct value tools, bool add_generation_prompt,
                    struct value context, struct rendered *out, struct error *err)
{
    (void)context;
    struct buf *b = &out->text;
    b->n = 0;
    buf_str(b, "");
    if (tools.type != V_UNDEFINED) return error_set(err, E_UNSUPPORTED, "tools need the model's own chat template");
    if (t->llama3) buf_str(b, "<|begin_of_text|>");
    for (size_t i = 0; i < messages.l->n; i++) {
        struct value role = value_get(messages.l->v[i], "role"), content = value_get(messages.l->v[i], "content");
        buf_str(b, t->llama3 ? "<|start_header_id|>" : "<|im_start|>");
        buf_add(b, role.s.p, role.s.n);
        buf_str(b, t->llama3 ? "<|end_header_id|>\n\n" : "\n");
        buf_add(b, content.s.p, content.s.n);
        buf_str(b, t->llama3 ? "<|eot_id|>" : "<|im_end|>\n");
    }
    if (add_generation_prompt) buf_str(b, t->llama3 ? "<|start_header_id|>assistant<|end_header_id|>\n\n" : "<|im_start|>assistant\n");
    return OK;
}

uint64_t template_hash(const struct chat_template *t) { return (uint64_t)t->llama3; }
bool template_marks_generation(const struct chat_template *t) { (void)t; return false; }
