#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "tests/suite.h"

static const struct { const char *text; size_t len; bool ok; } texts[] = {
#define T(s, ok) { s, sizeof s - 1, ok }
    T("{}", true), T(" [1, -0.5e+3, \"\\u00e9\", null] ", true), T("\"\\ud83d\\ude00\"", true),
    T("", false), T("{\"a\":1}xyz", false), T("{\"a\":1,\"a\":2}", false), T("{\"a\":1,\"\\u0061\":2}", false), T("007", false),
    T("1.", false), T("1e999", false), T("NaN", false), T("\"a\\u0000\"", false), T("\"a\0b\"", false), T("\"\xC0\x80\"", false),
    T("\"\xED\xA0\x80\"", false), T("\"\\ud800\"", false), T("\xEF\xBB\xBF{}", false), T("[1,]", false), T("{\"a\"}", false), T("\"\n\"", false),
    T("'a'", false), T("[", false), T("\"abc", false), T("\"\\x\"", false), T("tru", false), T("-", false), T("[1 2]", false), T("+1", false),
};

START_TEST(json_takes_and_refuses)
{
    struct error err = { 0 };
    int rc = json_check(texts[_i].text, texts[_i].len, &json_limits_request, false, &err);
    ck_assert_msg((rc == OK) == texts[_i].ok, "%s: %s", texts[_i].text, err.text);
    if (rc != OK) ck_assert_ptr_nonnull(strstr(err.text, "line "));
}
END_TEST

START_TEST(json_bounds_depth_and_values)
{
    struct json_limits lim = { 1000, 8, 20 };
    ck_assert_int_eq(json_check("[[[[[[[[1]]]]]]]]", 17, &lim, false, NULL), OK);
    ck_assert_int_ne(json_check("[[[[[[[[[1]]]]]]]]]", 19, &lim, false, NULL), OK);
    ck_assert_int_ne(json_check("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", 43, &lim, false, NULL), OK);
}
END_TEST

START_TEST(json_numbers_come_back)
{
    cJSON *o = cJSON_CreateObject(), *back;
    json_add_int(o, "big", 9007199254740991);
    json_add_int(o, "huge", 9007199254740993);
    json_add_num(o, "x", 0.1);
    json_add_num(o, "nan", 0.0 / 0.0);
    char *text = json_line(o);
    ck_assert_str_eq(text, "{\"big\":9007199254740991,\"huge\":\"9007199254740993\",\"x\":0.1,\"nan\":null,\"nan_nonfinite\":\"nan\"}");
    ck_assert_int_eq(json_parse(&back, text, strlen(text), &json_limits_request, NULL), OK);
    int64_t v;
    ck_assert(json_int(back, "big", &v) && v == 9007199254740991);
    ck_assert(!json_int(back, "x", &v));
    cJSON_Delete(back);
    cJSON_Delete(o);
    free(text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("json");
    TCase *t = tcase_create("json");
    tcase_add_loop_test(t, json_takes_and_refuses, 0, (int)(sizeof texts / sizeof texts[0]));
    tcase_add_test(t, json_bounds_depth_and_values);
    tcase_add_test(t, json_numbers_come_back);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
