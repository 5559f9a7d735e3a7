/* render.c - `ringmaster render`: conversations through a chat template, line by line, as apply_chat_template would. */
#include <stdio.h>
#include <string.h>

#include "api/printable.h"
#include "worker/data/lines.h"
#include "worker/data/template.h"
#include "worker/verbs.h"

static int render_line(void *arg, struct value r, struct pool *pool, struct buf *out, struct error *err)
{
    struct rendered text = { 0 };
    const char *bad;
    if (r.type != V_DICT) return error_set(err, E_INVALID, "expected an object, found %s", value_kind(r));
    struct value messages = value_get(r, "messages"), tools = value_get(r, "tools"), prompt = value_get(r, "add_generation_prompt"), context = value_get(r, "context");
    if (messages.type != V_LIST) return error_set(err, E_INVALID, "messages: expected an array, found %s", value_kind(messages));
    if (prompt.type != V_UNDEFINED && prompt.type != V_BOOL) return error_set(err, E_INVALID, "add_generation_prompt: expected true or false, found %s", value_kind(prompt));
    if (context.type != V_UNDEFINED && context.type != V_DICT) return error_set(err, E_INVALID, "context: expected an object, found %s", value_kind(context));
    (void)pool;
    int rc = template_render(arg, messages, tools, prompt.type == V_BOOL && prompt.tag, context, &text, err);
    if (rc == OK) {
        buf_str(out, "{\"text\": ");
        (void)value_dumps(out, v_str(text.text.p, text.text.n), -1, false, &bad);
        buf_str(out, "}");
    }
    rendered_release(&text);
    return rc;
}

int verb_render(int argc, char **argv)
{
    const char *file = NULL, *model = NULL, *name = "auto";
    struct chat_template *t = NULL;
    struct tokenizer *tok = NULL;
    struct error err = { 0 };
    int rc;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--template") == 0 && i + 1 < argc) file = argv[++i];
        else if (strcmp(argv[i], "--model") == 0 && i + 1 < argc) model = argv[++i];
        else if (strcmp(argv[i], "--name") == 0 && i + 1 < argc) name = argv[++i];
        else if (strcmp(argv[i], "--json") == 0) continue;      /* JSON either way */
        else {
            print_line(stderr, "ringmaster render: %s: unknown, or without its value", argv[i]);
            return 2;
        }
    }
    if ((file == NULL) == (model == NULL)) {
        (void)fputs("usage: ringmaster render --template FILE | --model DIR [--name auto|chatml|llama3]\n"
                    "Reads {\"messages\": …, \"tools\": …, \"add_generation_prompt\": …, \"context\": {…}} a line and writes {\"text\": …}.\n", stderr);
        return 2;
    }
    if (file) rc = template_open_file(&t, file, &err);
    else {
        struct error none = { 0 };
        (void)tokenizer_open(&tok, model, &none);               /* only a built-in template's choice needs it */
        rc = template_open(&t, model, name, tok, &err);
    }
    if (rc == OK) rc = lines_run(stdin, stdout, render_line, t, &err);
    template_free(t);
    tokenizer_free(tok);
    if (rc == OK) return 0;
    print_line(stderr, "ringmaster render: %s", err.text);
    return rc == E_IO || rc == E_INTERNAL ? 70 : rc == E_NOMEM ? 71 : rc == E_DISK_FULL ? 73 : 2;
}
