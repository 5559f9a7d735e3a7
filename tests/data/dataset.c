#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/data/dataset.h"
#include "tests/suite.h"

static char folder[64];

static char *file(const char *name, const char *text)
{
    char *path = xasprintf("%s/%s", folder, name);
    ck_assert_int_eq(file_write(path, text, strlen(text), NULL), OK);
    return path;
}

/* All samples of one file as lines: text, or the messages as JSON. */
static char *read_all(const char *spec, const char *columns, const char *system, struct error *err)
{
    char *specs[] = { (char *)spec };
    struct strlist list = { specs, 1 };
    struct dataset *d;
    struct buf b = { 0 };
    const char *bad;
    cJSON *map = columns ? cJSON_Parse(columns) : NULL;
    int rc = dataset_open(&d, &list, map, system, true, 42, err);
    for (int64_t i = 0; rc == OK && i < dataset_count(d); i++) {
        struct pool pool = { 0 };
        struct sample s;
        rc = dataset_sample(d, i, &pool, &s, err);
        if (rc == OK) {
            if (s.is_text) buf_add(&b, s.text.s.p, s.text.s.n);
            else (void)value_dumps(&b, s.messages, -1, false, &bad);
            if (rc == OK && s.tools.type != V_UNDEFINED) { buf_str(&b, " tools "); (void)value_dumps(&b, s.tools, -1, false, &bad); }
            buf_str(&b, "|");
        }
        pool_release(&pool);
    }
    dataset_close(d);
    cJSON_Delete(map);
    if (rc != OK) { buf_release(&b); return NULL; }
    return b.p;
}

#define U(t) "{\"role\": \"user\", \"content\": \"" t "\"}"
#define A(t) "{\"role\": \"assistant\", \"content\": \"" t "\"}"
#define S(t) "{\"role\": \"system\", \"content\": \"" t "\"}"

static const struct { const char *name, *text, *out; } shapes[] = {
    { "a.json", "[{\"instruction\":\"i\",\"input\":\"\",\"output\":\"o\"},\n {\"instruction\":\"i\",\"input\":\"x\",\"output\":\"o\",\"history\":[[\"q\",\"a\"]],\"system\":\"s\"}]",
      "[" U("i") ", " A("o") "]|[" S("s") ", " U("q") ", " A("a") ", " U("i\\nx") ", " A("o") "]|" },
    { "m.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"a\",\"loss\":false}]}\r\n\n",
      "[" U("u") ", {\"role\": \"assistant\", \"content\": \"a\", \"loss\": 0.0}]|" },
    { "c.jsonl", "{\"conversations\":[{\"from\":\"human\",\"value\":\"u\"},{\"from\":\"function_call\",\"value\":\"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"x\\\": 2.0}}\"},"
      "{\"from\":\"observation\",\"value\":\"r\"},{\"from\":\"gpt\",\"value\":\"a\"}],\"tools\":\"[{\\\"name\\\": \\\"f\\\"}]\"}",
      "[" U("u") ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 2.0}}}]}, "
      "{\"role\": \"tool\", \"content\": \"r\"}, " A("a") "] tools [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]|" },
    { "p.jsonl", "{\"system\":\"s\",\"conversation\":[{\"human\":\"u\",\"assistant\":\"a\"}]}", "[" S("s") ", " U("u") ", " A("a") "]|" },
    { "q.csv", "system,query,response\ns,\"u,\"\"1\"\"\",3.3\n,\"two\nlines\",b\r\n", "[" S("s") ", " U("u,\\\"1\\\"") ", " A("3.3") "]|[" U("two\\nlines") ", " A("b") "]|" },
    { "r.jsonl", "{\"response\":\"only\"}\n{\"text\":\"t\"}", "only|t|" },
    { "bom.jsonl", "\xEF\xBB\xBF{\"text\":\"a\"}\n{\"text\":\"b\"}", "a|b|" }, { "bom.json", "\xEF\xBB\xBF [{\"text\":\"a\"}]", "a|" }, { "bom.csv", "\xEF\xBB\xBFtext\na\n", "a|" }, { "bom.txt", "\xEF\xBB\xBFone", "one|" },
    { "t.txt", "one\r\ntwo\rthree", "one\ntwo\nthree|" },
    { "o.json", "{\"text\":\"a\"}\n{\"text\":\n\"b\"}", "a|b|" },
    { "old.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":null,\"thinking\":\"t\",\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}},"
      "{\"role\":\"function\",\"name\":\"f\",\"content\":\"r\"}]}",
      "[" U("u") ", {\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": \"t\", \"thinking\": \"t\", \"tool_calls\": [{\"type\": \"function\", \"function\": "
      "{\"name\": \"f\", \"arguments\": {}}}]}, {\"role\": \"tool\", \"content\": \"r\", \"name\": \"f\"}]|" },
    { "parts.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"value\":\"u\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"reasoning\",\"value\":\"r\"},"
      "{\"type\":\"text\",\"text\":\"a\"}],\"loss_weight\":1}]}",
      "[" U("u") ", {\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"r\", \"loss\": 1.0}]|" },
};

START_TEST(reads_every_shape)
{
    struct error err = { 0 };
    char *path = file(shapes[_i].name, shapes[_i].text), *got = read_all(path, NULL, NULL, &err);
    ck_assert_msg(got != NULL, "%s", err.text);
    ck_assert_str_eq(got, shapes[_i].out);
    free(got);
    free(path);
}
END_TEST

static const struct { const char *name, *text, *says; } bad[] = {
    { "empty.jsonl", "\n\n", "empty dataset" }, { "empty.json", "[]", "empty dataset" }, { "empty.csv", "a,b\n", "empty dataset" }, { "empty.txt", "", "empty dataset" },
    { "x.jsonl", "{\"text\":\"a\"}\n{\"text\":NaN}", "x.jsonl:2: column 9: expected a value" },
    { "d.jsonl", "{\"text\":\"a\",\"text\":\"b\"}", "d.jsonl:1: column 1: key \"text\" appears twice" },
    { "u.jsonl", "{\"text\":\"a\"}\n{\"text\":\"\xff\"}", "u.jsonl:2: column 10: not valid UTF-8" },
    { "b.jsonl", "{\"text\":\"a\"}\n\xEF\xBB\xBF{\"text\":\"a\"}", "b.jsonl:2: column 1: byte order mark" }, { "bb.jsonl", "\xEF\xBB\xBF\xEF\xBB\xBF{\"text\":\"a\"}", "bb.jsonl:1: column 1: byte order mark" },
    { "bom.txt", "\xEF\xBB\xBF", "empty dataset" }, { "b.csv", "text\n\xEF\xBB\xBF" "a\n", "b.csv:2: byte order mark" }, { "u.txt", "ok \xC3(", "u.txt:1: not valid UTF-8" },
    { "cut.json", "[{\"text\":\"a\"},\n{\"text\":", "cut.json:2: value is not closed" }, { "cut2.json", "[{\"text\":\"a\"}", "cut2.json:1: value is not closed" },
    { "comma.json", "[{\"text\":\"a\"},]", "comma.json:1: ']' after a comma" }, { "after.json", "[{\"text\":\"a\"}] x", "after.json:1: text after the end" },
    { "n.json", "[\n1]", "n.json:2: expected a record" }, { "t.jsonl", "{\"text\":5}", "t.jsonl:1: text: expected a string, found a number" },
    { "m.jsonl", "{\"messages\":[{\"role\":\"user\"}]}", "m.jsonl:1: messages[0]: content" }, { "m2.jsonl", "{\"messages\":{}}", "expected an array" },
    { "k.jsonl", "{\"foo\":\"a\"}", "no known columns" }, { "i.jsonl", "{\"query\":\"a\",\"response\":\"b\",\"images\":[\"x.png\"]}", "images: multimodal" },
    { "i2.jsonl", "{\"query\":\"<img>http://x/y</img> a\",\"response\":\"b\"}", "multimodal" },
    { "h.csv", "query,response\na,b,c\n", "h.csv:2: 3 fields, the header has 2" }, { "q.csv", "query,response\n\"a,b\n", "q.csv:2: a quoted field is not closed" },
    { "h2.csv", "a,a\n1,2\n", "appears twice in the header" }, { "z.bin", "x", "not a data set I can read" },
    { "call.jsonl", "{\"conversations\":[{\"from\":\"function_call\",\"value\":\"{bad\"}]}", "call.jsonl:1: conversations[0]: tool call is not valid JSON" },
};

START_TEST(refuses_naming_file_and_line)
{
    struct error err = { 0 };
    char *path = file(bad[_i].name, bad[_i].text), *got = read_all(path, NULL, NULL, &err);
    ck_assert_msg(got == NULL, "taken: %s", got);
    ck_assert_msg(strstr(err.text, bad[_i].says) != NULL, "\"%s\" has no \"%s\"", err.text, bad[_i].says);
    ck_assert(strstr(err.text, bad[_i].name) != NULL);
    free(path);
}
END_TEST

START_TEST(deep_nesting_is_refused)
{
    struct buf b = { 0 };
    struct error err = { 0 };
    buf_str(&b, "{\"text\":");
    for (int i = 0; i < 1000; i++) buf_str(&b, "[");
    for (int i = 0; i < 1000; i++) buf_str(&b, "]");
    buf_str(&b, "}");
    char *path = file("deep.jsonl", b.p);
    ck_assert_ptr_null(read_all(path, NULL, NULL, &err));
    ck_assert_ptr_nonnull(strstr(err.text, "deep.jsonl:1: column"));
    ck_assert_ptr_nonnull(strstr(err.text, "nested too deep"));
    free(path);
    buf_release(&b);
}
END_TEST

START_TEST(long_line_is_refused_at_once)
{
    struct error err = { 0 };
    char *path = xasprintf("%s/long.jsonl", folder);
    FILE *f = fopen(path, "w");
    (void)fputs("{\"text\":\"short\"}\n{\"text\":\"", f);
    static char block[1 << 16];
    memset(block, 'a', sizeof block);
    for (int i = 0; i < 800; i++) (void)fwrite(block, 1, sizeof block, f);
    (void)fputs("\"}\n", f);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_ptr_null(read_all(path, NULL, NULL, &err));
    ck_assert_ptr_nonnull(strstr(err.text, "long.jsonl:2: record of 52428"));
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(columns_and_system)
{
    struct error err = { 0 };
    char *path = file("map.jsonl", "{\"Q\":\"u\",\"A\":\"a\",\"query\":\"no\"}"), *got = read_all(path, "{\"Q\":\"query\",\"A\":\"response\"}", "sys", &err);
    ck_assert_msg(got != NULL, "%s", err.text);
    ck_assert_str_eq(got, "[" S("sys") ", " U("u") ", " A("a") "]|");
    free(got);
    got = read_all(path, "{\"Q\":\"query\",\"A\":\"alsonope\"}", NULL, &err);
    ck_assert_ptr_null(got);
    ck_assert_ptr_nonnull(strstr(err.text, "columns/A: \"alsonope\" is none of our columns"));
    free(path);
}
END_TEST

START_TEST(columns_that_no_record_has)
{
    struct error err = { 0 };
    char *path = file("seen.jsonl", "{\"query\":\"u\",\"response\":\"a\"}\nbroken\n{\"Q\":\"u\",\"response\":\"a\"}\n");
    struct strlist list = { &path, 1 };
    struct dataset *d;
    bool seen[2];
    cJSON *map = cJSON_Parse("{\"Q\":\"query\",\"A\":\"response\"}");
    ck_assert_msg(dataset_open(&d, &list, map, NULL, true, 42, &err) == OK, "%s", err.text);
    ck_assert(dataset_columns_seen(d, 1000, seen));
    ck_assert(seen[0] && !seen[1]);
    ck_assert(!dataset_columns_seen(d, 40, seen));             /* the first record alone */
    ck_assert(!seen[0] && !seen[1]);
    dataset_close(d);
    cJSON_Delete(map);
    free(path);
}
END_TEST

static int count(const char *s, const char *what)
{
    int n = 0;
    for (; (s = strstr(s, what)) != NULL; s += strlen(what)) n++;
    return n;
}

START_TEST(folders_hold_many_files)
{
    struct error err = { 0 };
    char *dir = xasprintf("%s/many", folder);
    ck_assert_int_eq(make_dirs(dir, NULL), OK);
    for (int i = 0; i < 1500; i++) {                            /* more than a process may open */
        char *path = xasprintf("%s/%04d.txt", dir, i);
        FILE *f = fopen(path, "w");                             /* not file(): 1,500 fsyncs take their time */
        ck_assert(f != NULL && fputs("x", f) >= 0 && fclose(f) == 0);
        free(path);
    }
    char *loop = xasprintf("%s/many/up", folder);
    ck_assert_int_eq(symlink("..", loop), 0);
    char *got = read_all(dir, NULL, NULL, &err);
    ck_assert_msg(got != NULL, "%s", err.text);
    ck_assert_uint_eq(strlen(got), 3000);
    free(got);
    free(loop);
    free(dir);
}
END_TEST

START_TEST(sampling_takes_whole_copies_then_a_random_part)
{
    struct error err = { 0 };
    char *path = file("s.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"}\n{\"text\":\"c\"}\n{\"text\":\"d\"}"), *eleven = xasprintf("%s#11", path), *two = xasprintf("%s#2", path);
    char *x = read_all(eleven, NULL, NULL, &err), *y = read_all(two, NULL, NULL, &err), *z = read_all(two, NULL, NULL, &err);
    ck_assert_int_eq((int)strlen(x), 22);
    static const char *const letters[] = { "a", "b", "c", "d" };
    for (int i = 0; i < 4; i++) ck_assert_int_ge(count(x, letters[i]), 2);
    ck_assert_int_eq((int)strlen(y), 4);
    ck_assert(y[0] != y[2]);
    ck_assert_str_eq(y, z);
    char *none = xasprintf("%s#0", path), *odd = xasprintf("%s#1x", path);
    ck_assert_ptr_null(read_all(none, NULL, NULL, &err));
    ck_assert_ptr_null(read_all(odd, NULL, NULL, &err));
    ck_assert_ptr_nonnull(strstr(err.text, "number of samples"));
    free(none); free(odd); free(x); free(y); free(z); free(eleven); free(two); free(path);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("dataset");
    TCase *t = tcase_create("dataset");
    (void)snprintf(folder, sizeof folder, "/tmp/rm-dataset-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, reads_every_shape, 0, sizeof shapes / sizeof shapes[0]);
    tcase_add_loop_test(t, refuses_naming_file_and_line, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(t, deep_nesting_is_refused);
    tcase_add_test(t, long_line_is_refused_at_once);
    tcase_add_test(t, columns_and_system);
    tcase_add_test(t, columns_that_no_record_has);
    tcase_add_test(t, folders_hold_many_files);
    tcase_add_test(t, sampling_takes_whole_copies_then_a_random_part);
    suite_add_tcase(s, t);
    int failed = suite_run(s, CK_FORK_GETENV);
    (void)remove_tree(folder, NULL);
    return failed;
}
