#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/spec.h"
#include "tests/suite.h"

static const char minimal[] = "{\"model\":\"/m\",\"dataset\":[\"/d.jsonl\"],\"output_dir\":\"/o\"}";

START_TEST(defaults_are_filled)
{
    struct spec s;
    struct problems p = { 0 };
    ck_assert_int_eq(spec_parse(&s, minimal, sizeof minimal - 1, &p), OK);
    ck_assert_int_eq(s.max_length, 4096);
    ck_assert_str_eq(s.tuner_type, "lora");
    ck_assert_double_eq(s.learning_rate, 1e-4);
    ck_assert_int_eq(s.target_modules.n, 1);
    ck_assert_ptr_null(s.resume_from_checkpoint);
    cJSON *j = spec_json(&s);
    struct spec again;
    ck_assert_int_eq(spec_from_json(&again, j, &p), OK);       /* the normal form is a spec */
    cJSON_Delete(j);
    spec_release(&again);
    spec_release(&s);
}
END_TEST

START_TEST(all_problems_at_once)
{
    static const char bad[] = "{\"model\":7,\"dataset\":[\"/d\",3],\"max_length\":1.5,\"seed\":-1,\"typo/x\":1,\"train_type\":\"lora\",\"init\":\"x\"}";
    static const char *const want[] = { "/model", "/dataset/1", "/max_length", "/seed", "/typo~1x", "/train_type", "/init", "/output_dir" };
    struct spec s;
    struct problems p = { 0 };
    ck_assert_int_eq(spec_parse(&s, bad, sizeof bad - 1, &p), E_INVALID);
    ck_assert_int_eq(p.n, 8);
    for (int i = 0; i < 8; i++) {
        bool found = false;
        for (int k = 0; k < p.n; k++) found |= strcmp(p.v[k].pointer, want[i]) == 0;
        ck_assert_msg(found, "%s", want[i]);
    }
    problems_release(&p);
}
END_TEST

static const struct { const char *extra, *pointer; } conflicts[] = {
    { "\"nproc_per_node\":3,\"sequence_parallel_size\":2", "/nproc_per_node" },
    { "\"nproc_per_node\":4,\"sequence_parallel_size\":4,\"ulysses_size\":2,\"ring_size\":4", "/sequence_parallel_size" },
    { "\"nproc_per_node\":4,\"sequence_parallel_size\":4,\"ulysses_size\":3", "/ulysses_size" },
    { "\"nproc_per_node\":4,\"sequence_parallel_size\":4,\"max_length\":4098", "/max_length" },
    { "\"use_galore\":true", "/use_galore" },
    { "\"zero_offload_gradients\":true,\"zero_stage\":1", "/zero_offload_gradients" },
    { "\"zero_offload_gradients\":true,\"zero_stage\":2,\"tuner_type\":\"full\",\"use_galore\":true", "/zero_offload_gradients" },
    { "\"nproc_per_node\":2,\"ring_size\":2,\"sequence_parallel_method\":\"ulysses\"", "/ring_size" },
};

START_TEST(relations_are_checked)
{
    char text[500];
    struct spec s;
    struct problems p = { 0 };
    int n = snprintf(text, sizeof text, "{\"model\":\"/m\",\"dataset\":\"/d\",\"output_dir\":\"/o\",%s}", conflicts[_i].extra);
    ck_assert_int_eq(spec_parse(&s, text, (size_t)n, &p), E_INVALID);
    ck_assert_str_eq(p.v[0].pointer, conflicts[_i].pointer);
    problems_release(&p);
}
END_TEST

START_TEST(schema_names_every_field)
{
    cJSON *schema = spec_schema();
    cJSON *props = json_get(schema, "properties");
    for (int i = 0; i < n_spec_fields; i++) ck_assert_ptr_nonnull(json_get(props, spec_fields[i].name));
    ck_assert_int_eq(cJSON_GetArraySize(props), n_spec_fields);
    cJSON_Delete(schema);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("spec");
    TCase *t = tcase_create("spec");
    tcase_add_test(t, defaults_are_filled);
    tcase_add_test(t, all_problems_at_once);
    tcase_add_loop_test(t, relations_are_checked, 0, (int)(sizeof conflicts / sizeof conflicts[0]));
    tcase_add_test(t, schema_names_every_field);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
