/* end_to_end.c - conversations of real data through real templates and tokenizers: ids as Hugging Face gives them, the last turn trained from
 * the end of its prompt on, and every earlier turn trained exactly on its own words and its end mark. usage: test NAME */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/data/encode.h"

static int failures, checked, turns;

static void complain(const char *what, int line, const char *more)
{
    failures++;
    (void)fprintf(stderr, "line %d: %s %s\n", line, what, more);
}

static bool same_ids(struct value want, const int32_t *v, int64_t n)
{
    if (want.type != V_LIST || (int64_t)want.l->n != n) return false;
    for (int64_t i = 0; i < n; i++) if (want.l->v[i].i != v[i]) return false;
    return true;
}

static void one(const struct tokenizer *tok, const struct chat_template *t, char *p, size_t n, int line)
{
    struct pool pool = { 0 };
    struct value v;
    struct error err = { 0 };
    struct sample s = { 0 };
    struct encoded last = { 0 }, all = { 0 };
    struct encoder e = { tok, t, LOSS_LAST_ROUND };
    if (value_parse(&v, &pool, p, n, &json_limits_file, &err) != OK || record_sample(&s, &pool, v, NULL, &err) != OK
        || encode_sample(&e, &s, &last, &err) != OK) { complain("refused:", line, err.text); pool_release(&pool); return; }
    checked++;
    struct value prompt = value_get(v, "prompt_ids");
    if (!same_ids(value_get(v, "ids"), last.ids.v, last.ids.n)) complain("ids differ", line, "");
    if (last.n_spans != 1 || last.spans[0].from != (int32_t)prompt.l->n || last.spans[0].to != last.ids.n) complain("mask of the last turn differs", line, "");
    e.loss_scale = LOSS_DEFAULT;
    if (encode_sample(&e, &s, &all, &err) != OK) { complain("refused:", line, err.text); return; }
    int span = 0;
    for (size_t i = 0; i < s.messages.l->n; i++) {
        if (!value_is_str(value_get(s.messages.l->v[i], "role"), "assistant")) continue;
        struct value words = value_get(s.messages.l->v[i], "content");
        if (span >= all.n_spans) { complain("a turn is not trained", line, ""); break; }
        char *text;
        size_t len;
        (void)tokenizer_decode(tok, all.ids.v + all.spans[span].from, all.spans[span].to - all.spans[span].from, false, &text, &len, NULL);
        char *found = memmem(text, len, words.s.p, words.s.n);
        size_t after = found ? len - (size_t)(found - text) - words.s.n : 0;
        if (!found || after != strlen("<|im_end|>\n") || memcmp(found + words.s.n, "<|im_end|>\n", after) != 0) complain("trained text of a turn:", line, text);
        if (found && found > text && memcmp(text, "<think>", 7) != 0) complain("trained before a turn:", line, text);
        free(text);
        span++;
        turns++;
    }
    if (span != all.n_spans) complain("more is trained than turns", line, "");
    encoded_release(&last);
    encoded_release(&all);
    pool_release(&pool);
}

int main(int argc, char **argv)
{
    const char *shared = getenv("RM_SHARED"), *name = argc > 1 ? argv[1] : "qwen3";
    char *lines = xasprintf("%s/data/end-to-end/%s.jsonl", shared ? shared : ".", name), *model = xasprintf("%s/data/tokenizers/%s", shared ? shared : ".", name);
    char *file = xasprintf("%s/data/chat-templates/%s/chat_template.jinja", shared ? shared : ".", name), *text;
    struct tokenizer *tok;
    struct chat_template *t;
    struct error err = { 0 };
    size_t len;
    if (file_read(lines, 1 << 26, &text, &len, NULL) != OK) {
        (void)fprintf(stderr, "skipped: no %s\n", lines);
        free(lines);
        free(model);
        free(file);
        return 77;
    }
    if (tokenizer_open(&tok, model, &err) != OK || template_open_file(&t, file, &err) != OK) { (void)fprintf(stderr, "%s\n", err.text); return 1; }
    int line = 1;
    for (char *p = text; *p; line++) {
        size_t n = strcspn(p, "\n");
        if (n) one(tok, t, p, n, line);
        p += n + (p[n] == '\n');
    }
    (void)printf("%d conversations, %d turns, %d wrong\n", checked, turns, failures);
    template_free(t);
    tokenizer_free(tok);
    free(text); free(lines); free(model); free(file);
    return failures != 0 || checked == 0;
}
