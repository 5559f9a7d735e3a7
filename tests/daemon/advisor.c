/* Tests of daemon/advisor.c: each cause alone, its threshold from both sides, once only. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/advisor.h"
#include "tests/suite.h"

static struct spec spec_of(int ranks)
{
    struct spec s;
    struct problems p = { 0 };
    char text[300];
    (void)snprintf(text, sizeof text, "{\"model\":\"m\",\"dataset\":[\"d\"],\"output_dir\":\"o\",\"nproc_per_node\":%d,\"memory_limit_bytes\":1000}", ranks);
    ck_assert_int_eq(spec_parse(&s, text, strlen(text), &p), OK);
    return s;
}

/* One record: share of waiting, step time, peak, tokens/s. */
static const char *step(struct advisor *a, const struct spec *s, int rank, double comm, double busy, int peak, double rate, char text[600])
{
    char json[300];
    (void)snprintf(json, sizeof json, "{\"step\":3,\"loss\":1.0,\"comm_share\":%g,\"step_s\":%g,\"comm_exposed_s\":0,\"peak_bytes\":%d,\"tokens_per_s\":%g}", comm, busy, peak, rate);
    cJSON *m = cJSON_Parse(json);
    const char *code = advisor_step(a, s, rank, m, text);
    cJSON_Delete(m);
    return code;
}

START_TEST(communication)
{
    struct advisor a = { 0 };
    struct spec s = spec_of(1);
    char text[600];
    for (int i = 0; i < 100; i++) ck_assert_ptr_null(step(&a, &s, 0, i % 20 == 19 ? 0.1 : 0.9, 1, 1, 100, text));     /* never 20 in a row */
    for (int i = 0; i < 19; i++) ck_assert_ptr_null(step(&a, &s, 0, 0.31, 1, 1, 100, text));
    ck_assert_str_eq(step(&a, &s, 0, 0.31, 1, 1, 100, text), "comm_share");
    ck_assert_ptr_nonnull(strstr(text, "31 %"));
    for (int i = 0; i < 50; i++) ck_assert_ptr_null(step(&a, &s, 0, 0.9, 1, 1, 100, text));
    spec_release(&s);
}
END_TEST

/* What is said depends on what the spec has not tried yet. */
START_TEST(communication_advice_fits_the_spec)
{
    static const struct { const char *method; int ring; bool overlap; const char *says; } cases[] = {
        { "auto", 0, true, "sequence_parallel_method ring" }, { "ulysses", 0, true, "sequence_parallel_method ring" },
        { "ring", 0, false, "enable_sequence_overlap true" }, { "hybrid", 2, false, "enable_sequence_overlap true" }, { "ring", 0, true, "fewer ranks per sequence" },
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct advisor a = { 0 };
        struct spec s = spec_of(4);
        char text[600] = "", method[16], *given = s.sequence_parallel_method;
        const char *code = NULL;
        (void)snprintf(method, sizeof method, "%s", cases[k].method);
        s.sequence_parallel_method = method, s.ring_size = cases[k].ring, s.enable_sequence_overlap = cases[k].overlap;
        for (int i = 0; i < 20; i++) code = step(&a, &s, 0, 0.4, 1, 1, 100, text);
        ck_assert_str_eq(code, "comm_share");
        ck_assert_msg(strstr(text, cases[k].says) != NULL, "%s", text);
        s.sequence_parallel_method = given;
        spec_release(&s);
    }
}
END_TEST

/* A ring that auto has chosen shows in the record alone. */
START_TEST(communication_advice_sees_the_ring)
{
    struct advisor a = { 0 };
    struct spec s = spec_of(4);
    char text[600] = "";
    const char *code = NULL;
    cJSON *m = cJSON_Parse("{\"step\":3,\"loss\":1.0,\"comm_share\":0.5,\"collectives\":{\"hop\":{\"calls\":3}}}");
    for (int i = 0; i < 20; i++) code = advisor_step(&a, &s, 0, m, text);
    ck_assert_str_eq(code, "comm_share");
    ck_assert_msg(strstr(text, "method ring") == NULL && strstr(text, "fewer ranks") != NULL, "%s", text);
    cJSON_Delete(m);
    spec_release(&s);
}
END_TEST

/* Without memory_limit_bytes the device's own limit counts, as the rank's records give it. */
START_TEST(memory_of_the_device)
{
    struct advisor a = { 0 };
    struct spec s = spec_of(1);
    char text[600];
    s.memory_limit_bytes = 0;
    cJSON *m = cJSON_Parse("{\"step\":3,\"loss\":1.0,\"peak_bytes\":919,\"limit_bytes\":1000}"), *n = cJSON_Parse("{\"step\":3,\"loss\":1.0,\"peak_bytes\":930,\"limit_bytes\":1000}");
    ck_assert_ptr_null(advisor_step(&a, &s, 0, m, text));
    ck_assert_str_eq(advisor_step(&a, &s, 0, n, text), "memory_near_limit");
    ck_assert_ptr_nonnull(strstr(text, "930 of 1000 bytes"));
    cJSON_Delete(m);
    cJSON_Delete(n);
    spec_release(&s);
}
END_TEST

START_TEST(skew)
{
    struct advisor a = { 0 }, even = { 0 };
    struct spec s = spec_of(4);
    char text[600];
    const char *code = NULL;
    for (int i = 0; i < 60 && !code; i++)
        for (int r = 0; r < 4 && !code; r++) code = step(&a, &s, r, 0, r == 2 ? 2.0 : 1.0, 1, 100, text);
    ck_assert_str_eq(code, "skew");
    ck_assert_ptr_nonnull(strstr(text, "rank 2 works 2.00 times"));
    for (int i = 0; i < 60; i++) for (int r = 0; r < 4; r++) ck_assert_ptr_null(step(&even, &s, r, 0, r == 2 ? 1.2 : 1.0, 1, 100, text));
    spec_release(&s);
}
END_TEST

START_TEST(memory_loss_throughput)
{
    struct advisor a = { 0 };
    struct spec s = spec_of(1);
    char text[600];
    ck_assert_ptr_null(step(&a, &s, 0, 0, 1, 920, 100, text));
    ck_assert_str_eq(step(&a, &s, 0, 0, 1, 921, 100, text), "memory_near_limit");
    cJSON *m = cJSON_Parse("{\"step\":7,\"loss\":null,\"loss_nonfinite\":\"nan\"}");
    ck_assert_str_eq(advisor_step(&a, &s, 0, m, text), "loss_not_finite");
    ck_assert_ptr_nonnull(strstr(text, "step 7"));
    ck_assert_ptr_null(advisor_step(&a, &s, 0, m, text));
    cJSON_Delete(m);
    const char *code = NULL;
    for (int i = 0; i < 40; i++) ck_assert_ptr_null(step(&a, &s, 0, 0, 1, 1, 100, text));
    for (int i = 0; i < 40; i++) ck_assert_ptr_null(step(&a, &s, 0, 0, 1, 1, 75, text));
    for (int i = 0; i < 40 && !code; i++) code = step(&a, &s, 0, 0, 1, 1, 60, text);
    ck_assert_str_eq(code, "throughput_drop");
    spec_release(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("advisor");
    TCase *c = tcase_create("advisor");
    tcase_add_test(c, communication);
    tcase_add_test(c, communication_advice_fits_the_spec);
    tcase_add_test(c, communication_advice_sees_the_ring);
    tcase_add_test(c, memory_of_the_device);
    tcase_add_test(c, skew);
    tcase_add_test(c, memory_loss_throughput);
    suite_add_tcase(suite, c);
    return suite_run(suite, CK_FORK_GETENV);
}
