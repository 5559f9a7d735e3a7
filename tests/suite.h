/* suite.h - the end of every test program: runs its suite, frees it. Returns what main returns: 0, or 1 if a test failed.
 * CK_NOFORK for what a forked child would lose (device memory, threads, large tables); else CK_FORK_GETENV. */
#ifndef RM_TESTS_SUITE_H
#define RM_TESTS_SUITE_H

#include <check.h>

static inline int suite_run(Suite *suite, enum fork_status how)
{
    SRunner *r = srunner_create(suite);
    srunner_set_fork_status(r, how);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}

#endif
