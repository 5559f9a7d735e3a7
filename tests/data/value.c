#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/value.h"
#include "tests/suite.h"

static char *dumped(const char *json)
{
    struct pool pool = { 0 };
    struct value v;
    struct error err;
    struct buf b = { 0 };
    const char *bad = NULL;
    ck_assert_msg(value_parse(&v, &pool, json, strlen(json), &json_limits_file, &err) == OK, "%s", err.text);
    ck_assert(value_dumps(&b, v, -1, false, &bad));
    pool_release(&pool);
    return b.p;
}

START_TEST(numbers_keep_their_kind)
{
    static const struct { const char *in, *out; } cases[] = {
        { "[1,2.0,-3,1e21,1e-5,0.1,1e+16,123456789012345678901234567890,-0.0,1.5e300]",
          "[1, 2.0, -3, 1e+21, 1e-05, 0.1, 1e+16, 123456789012345678901234567890, -0.0, 1.5e+300]" },
        { "{\"b\":[],\"a\":{},\"n\":null,\"t\":true}", "{\"b\": [], \"a\": {}, \"n\": null, \"t\": true}" },
        { "\"\\u00e9\\ud83c\\udfef\\n\\u0001\\/\\u0000\"", "\"\xC3\xA9\xF0\x9F\x8F\xAF\\n\\u0001/\\u0000\"" },
        { " [ ] ", "[]" }, { "{\"a\\\"b\":\"\\\\\"}", "{\"a\\\"b\": \"\\\\\"}" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *s = dumped(cases[i].in);
        ck_assert_str_eq(s, cases[i].out);
        free(s);
    }
}
END_TEST

START_TEST(dict_replaces_in_place)
{
    struct pool pool = { 0 };
    struct value d = v_dict(&pool);
    for (int i = 0; i < 100; i++) dict_set(&pool, d.d, v_int(i % 10), v_int(i));
    ck_assert_uint_eq(d.d->n, 10);
    ck_assert_int_eq(d.d->v[3].i, 93);
    pool_release(&pool);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("value");
    TCase *t = tcase_create("value");
    tcase_add_test(t, numbers_keep_their_kind);
    tcase_add_test(t, dict_replaces_in_place);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
