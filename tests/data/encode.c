#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/encode.h"

/* The sample's text with trained stretches in [ ]. */
static char *shown(const char *json, const char *loss_scale)
{
    struct pool pool = { 0 };
    struct value v;
    struct error err = { 0 };
    struct sample s = { 0 };
    struct encoder e = { 0 };
    struct tokenizer *tok;
    struct chat_template *tmpl;
    struct encoded out = { 0 };
    struct buf b = { 0 };
    ck_assert_int_eq(tokenizer_open(&tok, "", NULL), OK);
    ck_assert_msg(template_open(&tmpl, "", "chatml", tok, &err) == OK, "%s", err.text);
    e.tok = tok;
    e.tmpl = tmpl;
    e.loss_scale = (enum loss_scale)loss_scale_named(loss_scale);
    ck_assert_msg(value_parse(&v, &pool, json, strlen(json), &json_limits_file, &err) == OK, "%s", err.text);
    ck_assert_msg(record_sample(&s, &pool, v, NULL, &err) == OK, "%s", err.text);
    ck_assert_msg(encode_sample(&e, &s, &out, &err) == OK, "%s", err.text);
    for (int64_t t = 0, k = 0; t < out.ids.n; t++) {
        char *text;
        size_t len;
        if (k < out.n_spans && t == out.spans[k].from) buf_str(&b, "[");
        (void)tokenizer_decode(tok, out.ids.v + t, 1, false, &text, &len, NULL);
        buf_add(&b, text, len);
        free(text);
        if (k < out.n_spans && t + 1 == out.spans[k].to) { buf_str(&b, "]"); k++; }
    }
    encoded_release(&out);
    template_free(tmpl);
    tokenizer_free(tok);
    pool_release(&pool);
    return b.p;
}

#define TURNS "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"a\"%s},{\"role\":\"user\",\"content\":\"v\"},{\"role\":\"assistant\",\"content\":\"%s\"}]}"

static const struct { const char *more, *last, *scale, *out; } cases[] = {
    { "", "b", "default", "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>\n]<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>\n]" },
    { "", "b", "last_round", "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>\n]" },
    { ",\"loss\":false", "b", "default", "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>\n]" },
    { ",\"loss\":true", "b", "last_round", "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>\n]<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>\n]" },
    { "", "b", "all", "[<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n]" },
    { "", "<think>\\n\\n</think>\\n\\nb", "ignore_empty_think",
      "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>\n]<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n[b<|im_end|>\n]" },
    /* the three newlines are one token, half prompt, half answer: it is trained, the ids stay those of the whole text */
    { "", "\\n\\nb", "default", "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>\n]<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant[\n\n\nb<|im_end|>\n]" },
};

START_TEST(assistant_turns_are_trained)
{
    char *json = xasprintf(TURNS, cases[_i].more, cases[_i].last), *got = shown(json, cases[_i].scale);
    ck_assert_str_eq(got, cases[_i].out);
    free(got);
    free(json);
}
END_TEST

START_TEST(text_is_trained_whole_and_ends)
{
    char *got = shown("{\"text\":\"abc\"}", "default");
    ck_assert_str_eq(got, "[abc<|im_end|>]");
    free(got);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("encode");
    TCase *t = tcase_create("encode");
    tcase_add_loop_test(t, assistant_turns_are_trained, 0, sizeof cases / sizeof cases[0]);
    tcase_add_test(t, text_is_trained_whole_and_ends);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int n = srunner_ntests_failed(r);
    srunner_free(r);
    return n != 0;
}
