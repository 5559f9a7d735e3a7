/* nvml.c - readings, what is not told, the rank order and a driver that is down, against a stand-in library (standin.c). Each in a process of its
 * own: the library is opened once. */
#include "worker/nvml.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void open_as(const char *how)
{
    struct error err;
    if (how) ck_assert_int_eq(setenv("NVML_STANDIN", how, 1), 0);
    ck_assert_msg(nvml_open(&err) == OK, "%s", err.text);
    ck_assert_int_eq(nvml_open(&err), OK);
}

START_TEST(readings)
{
    struct gpu_reading r;
    char text[200];
    open_as(NULL);
    ck_assert(nvml_read("GPU-1", &r));
    ck_assert(r.utilization == 0.41 && r.power_w == 651.5 && r.power_limit_w == 700 && r.temperature_c == 64 && r.sm_clock_mhz == 1755);
    ck_assert(isnan(r.sm_clock_max_mhz));               /* the stand-in has no such function */
    ck_assert_int_eq(r.memory_used_bytes, 5000000000);
    ck_assert_str_eq(nvml_throttle_text(r.throttle, text, sizeof text), "power limit, too hot (hardware)");
    cJSON *o = cJSON_CreateObject();
    nvml_add(o, "gpu_", &r);
    char *line = json_line(o);
    ck_assert_str_eq(line, "{\"gpu_utilization\":0.41,\"gpu_power_w\":651.5,\"gpu_power_limit_w\":7e+02,\"gpu_temperature_c\":64,\"gpu_sm_clock_mhz\":1755,"
                           "\"gpu_memory_used_bytes\":5000000000,\"gpu_throttle\":\"power limit, too hot (hardware)\"}");
    free(line);
    cJSON_Delete(o);
    ck_assert(nvml_read("GPU-0", &r));
    ck_assert_str_eq(nvml_throttle_text(r.throttle, text, sizeof text), "");        /* idle slows nothing down */
    ck_assert_str_eq(nvml_throttle_text(UINT64_MAX, text, 12), "power limit");      /* cut, not overrun */
    ck_assert(!nvml_read("GPU-9", &r));
    ck_assert(!nvml_read("", &r));
}
END_TEST

START_TEST(what_a_card_does_not_tell_is_left_out)
{
    struct gpu_reading r;
    open_as("poor");
    ck_assert(nvml_read("GPU-2", &r));
    cJSON *o = cJSON_CreateObject();
    nvml_add(o, "", &r);
    char *line = json_line(o);
    ck_assert_str_eq(line, "{\"memory_used_bytes\":5000000000}");
    free(line);
    cJSON_Delete(o);
}
END_TEST

START_TEST(rank_order)
{
    static const char uuid[5][64] = { "GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-7" };
    static const struct { const char *how; int n, want[5]; } cases[] = {
        { NULL, 4, { 0, 2, 1, 3 } },            /* along the links */
        { NULL, 2, { 0, 1 } }, { NULL, 0, { 0 } },
        { NULL, 5, { 0, 1, 2, 3, 4 } },         /* one of them is unknown: nothing is guessed */
        { "switch", 4, { 0, 1, 2, 3 } },
        { "poor", 4, { 0, 1, 2, 3 } },
    };
    int order[5] = { 9, 9, 9, 9, 9 };
    open_as(cases[_i].how);
    nvml_order(uuid, cases[_i].n, order);
    for (int i = 0; i < cases[_i].n; i++) ck_assert_int_eq(order[i], cases[_i].want[i]);
}
END_TEST

/* The worst pair counts: what is not wired directly goes over PCIe, unless all links end at a switch. */
START_TEST(link_speed)
{
    static const char uuid[4][64] = { "GPU-0", "GPU-1", "GPU-2", "GPU-3" }, pair[2][64] = { "GPU-0", "GPU-2" }, gone[2][64] = { "GPU-0", "GPU-7" };
    static const struct { const char *how; double all, two; const char *wire; } cases[] = {
        { NULL, 1.969e9 * 8 * 0.7, 25e9 * 0.8, "PCIe" }, { "switch", 4 * 25e9 * 0.8, 4 * 25e9 * 0.8, "NVLink" }, { "poor", 0, 0, "PCIe" },
    };
    const char *how;
    open_as(cases[_i].how);
    ck_assert_double_eq_tol(nvml_link_Bps(uuid, 4, &how), cases[_i].all, 1);
    ck_assert_str_eq(how, cases[_i].wire);
    ck_assert_double_eq_tol(nvml_link_Bps(pair, 2, &how), cases[_i].two, 1);
    if (cases[_i].two > 0) ck_assert_str_eq(how, "NVLink");
    ck_assert_double_eq(nvml_link_Bps(gone, 2, &how), 0);
    ck_assert_double_eq(nvml_link_Bps(uuid, 1, &how), 0);
}
END_TEST

START_TEST(a_driver_that_is_down)
{
    struct error err;
    ck_assert_int_eq(setenv("NVML_STANDIN", "down", 1), 0);
    ck_assert_int_eq(nvml_open(&err), E_UNSUPPORTED);
    ck_assert_str_eq(err.text, "NVML: Driver Not Loaded");
    ck_assert_int_eq(setenv("NVML_STANDIN", "up", 1), 0);
    ck_assert_int_eq(nvml_open(&err), OK);              /* later it may be up */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("nvml");
    TCase *tc = tcase_create("nvml");
    tcase_add_test(tc, readings);
    tcase_add_test(tc, what_a_card_does_not_tell_is_left_out);
    tcase_add_loop_test(tc, rank_order, 0, 6);
    tcase_add_loop_test(tc, link_speed, 0, 3);
    tcase_add_test(tc, a_driver_that_is_down);
    suite_add_tcase(s, tc);
    return suite_run(s, CK_FORK_GETENV);
}
