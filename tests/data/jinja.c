/* jinja.c - snippets against what Python's Jinja2 makes of them (jinja-cases.jsonl), and what a hostile template may not do. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/file.h"
#include "worker/data/jinja.h"
#include "tests/suite.h"

static const char *cases_path;

static int render(const char *source, size_t len, struct value context, const struct jinja_limits *limits, struct rendered *out, struct error *err)
{
    struct jinja *t;
    int rc = jinja_compile(&t, source, len, err);
    if (rc != OK) return rc;
    rc = jinja_render(t, context, 1000000000, limits, out, err);
    jinja_free(t);
    return rc;
}

START_TEST(equals_python)
{
    char *text;
    size_t len;
    struct error err = { 0 };
    struct pool shared = { 0 };
    struct value context = v_undefined();
    int n = 0, wrong = 0;
    ck_assert_msg(file_read(cases_path, 1 << 24, &text, &len, &err) == OK, "%s", err.text);
    for (char *p = text; *p;) {
        size_t line = strcspn(p, "\n");
        struct pool pool = { 0 };
        struct value v;
        struct rendered out = { 0 };
        if (n == 0) {
            ck_assert_msg(value_parse(&v, &shared, p, line, &json_limits_file, &err) == OK, "%s", err.text);
            context = value_get(v, "context");
            dict_set(&shared, context.d, v_cstr("messages"), v_list(&shared));
            dict_set(&shared, context.d, v_cstr("tools"), v_none());
        } else {
            ck_assert_msg(value_parse(&v, &pool, p, line, &json_limits_file, &err) == OK, "%s", err.text);
            struct value t = value_get(v, "template"), want = value_get(v, "text");
            err.text[0] = '\0';
            int rc = render(t.s.p, t.s.n, context, &jinja_limits_default, &out, &err);
            bool ok = want.type == V_STR ? rc == OK && out.text.n == want.s.n && memcmp(out.text.p, want.s.p, want.s.n) == 0 : rc != OK;
            if (!ok) {
                wrong++;
                (void)fprintf(stderr, "%s\n  want %s\n  have %s\n", t.s.p, want.type == V_STR ? want.s.p : value_get(v, "error").s.p, rc == OK ? out.text.p : err.text);
            }
        }
        rendered_release(&out);
        pool_release(&pool);
        n++;
        p += line + (p[line] == '\n');
    }
    pool_release(&shared);
    free(text);
    ck_assert_int_gt(n, 150);
    ck_assert_int_eq(wrong, 0);
}
END_TEST

static const struct { const char *source, *says; int code; } hostile[] = {
    { "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "runs too long", E_LIMIT },
    { "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself", E_LIMIT },
    { "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}", "calls itself", E_LIMIT },
    { "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}", "template ", E_LIMIT },
    { "{% set n = namespace(l=[1]) %}{% for i in range(100) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}", "template ", E_LIMIT },
    { "{% set n = namespace(l=[1]) %}{% for i in range(80) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l == n.l }}", "template ", E_LIMIT },
    { "{{ range(1000000) }}", "Range too big", E_INVALID },
    { "{{ 'a' * 99999999999 }}", "too large", E_INVALID },
    { "{{ 9223372036854775807 + 1 }}", "too large", E_INVALID },
    { "{{ 'x'.center(999999999) }}", "too large", E_INVALID },
    { "{{ '%99999999d' % 1 }}", "too wide", E_INVALID },
    { "{{ x.__class__.__mro__ }}", "undefined", E_INVALID },
};

START_TEST(hostile_templates_end)
{
    static const struct jinja_limits limits = { 400000, (size_t)32 << 20, (size_t)8 << 20 };
    struct rendered out = { 0 };
    struct error err = { 0 };
    struct pool pool = { 0 };
    ck_assert_int_eq(render(hostile[_i].source, strlen(hostile[_i].source), v_dict(&pool), &limits, &out, &err), hostile[_i].code);
    ck_assert_msg(strstr(err.text, hostile[_i].says) != NULL, "%s", err.text);
    ck_assert_ptr_eq(strstr(err.text, "line 1: "), err.text);
    rendered_release(&out);
    pool_release(&pool);
}
END_TEST

START_TEST(depth_is_bounded_when_compiling)
{
    static const char *const opens[] = { "(", "[", "{% if 1 %}", "not ", "-", "{'a':", "x if y else " };
    for (size_t i = 0; i < sizeof opens / sizeof opens[0]; i++) {
        struct buf b = { 0 };
        struct rendered out = { 0 };
        struct error err = { 0 };
        struct pool pool = { 0 };
        if (opens[i][0] != '{' || opens[i][1] != '%') buf_str(&b, "{{ ");
        for (int k = 0; k < 20000; k++) buf_str(&b, opens[i]);
        ck_assert_int_ne(render(b.p, b.n, v_dict(&pool), &jinja_limits_default, &out, &err), OK);
        rendered_release(&out);
        pool_release(&pool);
        buf_release(&b);
    }
}
END_TEST

START_TEST(generation_blocks_are_noted)
{
    static const char source[] = "{% for m in 'ab' %}<{% generation %}{{ m }}x{% endgeneration %}>{% endfor %}";
    struct rendered out = { 0 };
    struct error err = { 0 };
    struct pool pool = { 0 };
    ck_assert_int_eq(render(source, strlen(source), v_dict(&pool), &jinja_limits_default, &out, &err), OK);
    ck_assert_str_eq(out.text.p, "<ax><bx>");
    ck_assert_uint_eq(out.n_generated, 2);
    ck_assert_uint_eq(out.generated[0].from, 1);
    ck_assert_uint_eq(out.generated[0].to, 3);
    ck_assert_uint_eq(out.generated[1].from, 5);
    ck_assert_uint_eq(out.generated[1].to, 7);
    rendered_release(&out);
    pool_release(&pool);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("jinja");
    TCase *t = tcase_create("jinja");
    cases_path = argc > 1 ? argv[1] : "tests/data/jinja-cases.jsonl";
    tcase_set_timeout(t, 60);
    tcase_add_test(t, equals_python);
    tcase_add_loop_test(t, hostile_templates_end, 0, sizeof hostile / sizeof hostile[0]);
    tcase_add_test(t, depth_is_bounded_when_compiling);
    tcase_add_test(t, generation_blocks_are_noted);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
