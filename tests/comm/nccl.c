/* nccl.c - NCCL as far as a machine without a GPU shows it: ids can be made, and what it says about a missing driver reaches the caller. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/comm/transport.h"
#include "tests/suite.h"

static bool have_device;
static struct error why;        /* it has none */

START_TEST(transport_is_in_the_module)
{
    const struct comm_transport *(*get)(void) = NULL;
    *(void **)&get = kernel_cuda_symbol("ringmaster_cuda_transport");
    ck_assert_ptr_nonnull(get);
    const struct comm_transport *t = get();
    ck_assert_str_eq(t->name, "nccl");
    ck_assert(t->async);
    ck_assert_ptr_null(kernel_cuda_symbol("no such function"));
    ck_assert_int_gt(comm_overhead_bytes("nccl", 2), 0);
    ck_assert_int_eq(comm_overhead_bytes("nccl", 1), 0);
}
END_TEST

START_TEST(id_and_error_path)
{
    int (*check)(char *version, size_t size, struct error *err) = NULL;
    *(void **)&check = kernel_cuda_symbol("ringmaster_cuda_nccl_check");
    ck_assert_ptr_nonnull(check);
    char version[40] = "";
    struct error err = { 0 };
    int rc = check(version, sizeof version, &err), major = 0, minor = 0;
    ck_assert_int_eq(sscanf(version, "%d.%d.", &major, &minor), 2);
    ck_assert_msg(major > 2 || (major == 2 && minor >= 19), "version %s", version);
    if (have_device) {
        ck_assert_msg(rc == OK, "%s", err.text);
        return;
    }
    ck_assert_int_eq(rc, E_NCCL);           /* not of ncclGetUniqueId: that works without a driver */
    ck_assert_msg(strstr(err.text, "ncclCommInitRankConfig") && strstr(err.text, "cuda"), "%s", err.text);
}
END_TEST

static int nobody_put(void *arg, const char *key, const char *value, struct error *err) { (void)arg, (void)key, (void)value, (void)err; return OK; }
static int nobody_get(void *arg, const char *key, char **value, int timeout_ms, struct error *err)
{
    (void)arg, (void)key, (void)timeout_ms;
    *value = NULL;
    return error_set(err, E_TIMEOUT, "nobody is there");
}

/* Two ranks without a device: the world does not open, says why, and leaves nothing behind. */
START_TEST(no_device)
{
    struct comm_meeting m = { .put = nobody_put, .get = nobody_get };
    const struct comm_transport *(*get)(void) = NULL;
    *(void **)&get = kernel_cuda_symbol("ringmaster_cuda_transport");
    struct comm_world *w = NULL;
    struct error err = { 0 };
    if (have_device) return;
    ck_assert_msg(strstr(why.text, "device cuda: no CUDA device can be used: ") == why.text, "%s", why.text);
    int rc = comm_open_with(&w, get(), kernel_ops_cuda_module(&err), &m, 0, 2, 4096, 1000, &err);
    ck_assert_int_eq(rc, E_CUDA);
    ck_assert_ptr_null(w);
    ck_assert_msg(strstr(err.text, "driver") || strstr(err.text, "device"), "%s", err.text);
}
END_TEST

int main(void)
{
    struct error err = { 0 };
    if (kernel_ops_cuda_module(&err) == NULL || kernel_cuda_symbol("ringmaster_cuda_transport") == NULL) {
        (void)printf("skipped: %s\n", err.code ? err.text : "the CUDA module was built without NCCL");
        return 77;
    }
    have_device = kernel_ops_cuda(&err) != NULL;
    why = err;
    Suite *s = suite_create("nccl");
    TCase *t = tcase_create("nccl");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, transport_is_in_the_module);
    tcase_add_test(t, id_and_error_path);
    tcase_add_test(t, no_device);
    suite_add_tcase(s, t);
    return suite_run(s, CK_NOFORK);      /* a CUDA context does not survive fork() */
}
