#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/data/encode.h"
#include "tests/suite.h"

/* The sample's text with trained stretches in [ ]. */
static char *shown_by(const char *template, const char *json, const char *loss_scale)
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
    if (template) {
        char path[] = "/tmp/rm-encode-XXXXXX";
        int fd = mkstemp(path);
        ck_assert_int_eq(write_all(fd, template, strlen(template), NULL), OK);
        (void)close(fd);
        ck_assert_msg(template_open_file(&tmpl, path, &err) == OK, "%s", err.text);
        (void)unlink(path);
    } else ck_assert_msg(template_open(&tmpl, "", "chatml", tok, &err) == OK, "%s", err.text);
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

static char *shown(const char *json, const char *loss_scale) { return shown_by(NULL, json, loss_scale); }

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

/* Templates that make trouble: history without its reasoning, tool calls, roles that must alternate, a prompt that opens a think block. */
#define HEAD "{% for m in messages %}{% if m.role != 'assistant' %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% else %}"
#define TAIL "{{ '<|im_end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define CALLS "{% for c in m.tool_calls or [] %}{{ '\\n' if m.content or not loop.first }}{{ '<call>' + c.function.name + c.function.arguments | string + '</call>' }}{% endfor %}"
static const char forgets[] = HEAD "{{ '<|im_start|>assistant\\n' }}{% if loop.last %}{{ '<think>' + (m.reasoning_content or '') + '</think>' }}{% endif %}{{ m.content }}" CALLS TAIL;
static const char strict[] = "{% for m in messages %}{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call before a tool') }}{% endif %}{% endfor %}" HEAD
    "{{ '<|im_start|>assistant\\n' }}{% if loop.last %}{{ '<think></think>' }}{% endif %}{{ m.content }}" CALLS TAIL;
static const char opens[] = HEAD "{{ '<|im_start|>assistant\\n' }}{{ m.content.split('</think>')[-1].strip() if not loop.last else m.content }}"
    "{{ '<|im_end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}";
static const char says[] = HEAD "{{ '<|im_start|>assistant\\n' }}{% generation %}{{ m.content }}{% endgeneration %}" TAIL;
static const char appends[] = HEAD "{{ '<|im_start|>assistant\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}{{ '<|im_start|>assistant\\n' }}";
#define M(role, more) "{\"role\":\"" role "\"," more "}"
#define CALL "\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]"
#define TALK "{\"messages\":[" M("user", "\"content\":\"q\"") "," M("assistant", CALL ",\"reasoning_content\":\"hm\"") "," M("tool", "\"content\":\"r\"") "," \
    M("assistant", "\"content\":\"a\",\"reasoning_content\":\"so\"") "," M("user", "\"content\":\"p\"") "," M("assistant", "\"content\":\"b\",\"reasoning_content\":\"z\"") "]}"
#define US(t) "<|im_start|>user\n" t "<|im_end|>\n<|im_start|>assistant\n"
static const struct { const char *template, *json, *out; } hard[] = {
    { forgets, TALK, US("q") "[<call>f{'x': 1}</call><|im_end|>\n]<|im_start|>tool\nr<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>\n]" US("p") "[<think>z</think>b<|im_end|>\n]" },
    { strict, TALK, US("q") "[<call>f{'x': 1}</call><|im_end|>\n]<|im_start|>tool\nr<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>\n]" US("p") "[<think></think>b<|im_end|>\n]" },
    { opens, "{\"messages\":[" M("user", "\"content\":\"q\"") "," M("assistant", "\"content\":\"<think>\\nw</think> a\"") "," M("user", "\"content\":\"a\"") "," M("assistant", "\"content\":\"<think>\\nv</think>b\"") "]}",
      US("q") "[a<|im_end|>\n]" US("a") "<think>\n[v</think>b<|im_end|>\n]" },
    /* the answer ends with the bytes the mark ends with */
    { forgets, "{\"messages\":[" M("user", "\"content\":\"q\"") "," M("assistant", "\"content\":\"\xE4\xBD\xA0\xE3\x80\x81\"") "," M("user", "\"content\":\"\xE3\x80\x81\"") "," M("assistant", "\"content\":\"b\"") "]}",
      US("q") "[\xE4\xBD\xA0\xE3\x80\x81<|im_end|>\n]" US("\xE3\x80\x81") "[<think></think>b<|im_end|>\n]" },
    /* the prompt at the end that nobody asked for (Llama-3's first template) is kept, as in Hugging Face, and not trained */
    { appends, "{\"messages\":[" M("user", "\"content\":\"q\"") "," M("assistant", "\"content\":\"a\"") "," M("user", "\"content\":\"p\"") "," M("assistant", "\"content\":\"b\"") "]}",
      US("q") "[a<|im_end|>\n]" US("p") "[b<|im_end|>\n]<|im_start|>assistant\n" },
    { appends, "{\"messages\":[" M("user", "\"content\":\"q\"") "," M("assistant", "\"content\":\"a\"") "," M("user", "\"content\":\"p\"") "," M("assistant", "\"content\":\"b\"")
      "," M("user", "\"content\":\"q\"") "," M("assistant", "\"content\":\"c\"") "]}",
      US("q") "[a<|im_end|>\n]" US("p") "[b<|im_end|>\n]" US("q") "[c<|im_end|>\n]<|im_start|>assistant\n" },
    { says, "{\"messages\":[" M("user", "\"content\":\"q\"") "," M("assistant", "\"content\":\"a\"") "," M("user", "\"content\":\"p\"") "," M("assistant", "\"content\":\"b\"") "]}",
      US("q") "[a]<|im_end|>\n" US("p") "[b]<|im_end|>\n" },
};

START_TEST(many_turns_are_found_at_once)
{
    struct buf json = { 0 }, want = { 0 };
    buf_str(&json, "{\"messages\":[");
    for (int i = 0; i < 200; i++) {
        char *m = xasprintf("%s{\"role\":\"user\",\"content\":\"go on\"},{\"role\":\"assistant\",\"content\":\"a%d\"}", i ? "," : "", i % 3);
        char *w = xasprintf(US("go on") "[%sa%d<|im_end|>\n]", i == 199 ? "<think></think>" : "", i % 3);
        buf_str(&json, m);
        buf_str(&want, w);
        free(m);
        free(w);
    }
    buf_str(&json, "]}");
    char *got = shown_by(forgets, json.p, "default");
    ck_assert_str_eq(got, want.p);
    free(got);
    buf_release(&json);
    buf_release(&want);
}
END_TEST

START_TEST(turns_are_found_though_history_is_rewritten)
{
    char *got = shown_by(hard[_i].template, hard[_i].json, "default");
    ck_assert_str_eq(got, hard[_i].out);
    free(got);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("encode");
    TCase *t = tcase_create("encode");
    tcase_add_loop_test(t, assistant_turns_are_trained, 0, sizeof cases / sizeof cases[0]);
    tcase_add_test(t, text_is_trained_whole_and_ends);
    tcase_add_test(t, many_turns_are_found_at_once);
    tcase_add_loop_test(t, turns_are_found_though_history_is_rewritten, 0, sizeof hard / sizeof hard[0]);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
