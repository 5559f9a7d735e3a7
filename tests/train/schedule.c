/* Numbers printed by transformers 5.24 get_scheduler with lr 1e-3, min_lr_rate 0.1. */
#include "worker/train/schedule.h"

#include <check.h>
#include <stdlib.h>

static const struct { char *kind; int total, warmup; double lr[20]; } want[] = {
    { "cosine", 20, 3, { 0.0, 0.0003333333333333333, 0.0006666666666666666, 0.001, 0.000991486549841951, 0.0009662361147021779, 0.0009251085678648072, 0.0008695044586103295, 0.0008013173181896282, 0.0007228691778882692, 0.0006368314950360416, 0.000546134179731651, 0.00045386582026834903, 0.0003631685049639586, 0.0002771308221117309, 0.00019868268181037185, 0.0001304955413896705, 7.489143213519301e-05, 3.376388529782215e-05, 8.513450158049108e-06 } },
    { "cosine", 7, 0, { 0.001, 0.0009504844339512095, 0.0008117449009293668, 0.0006112604669781572, 0.00038873953302184284, 0.00018825509907063325, 4.9515566048790485e-05 } },
    { "cosine", 10, 10, { 0.0, 0.0001, 0.0002, 0.0003, 0.0004, 0.0005, 0.0006, 0.0007, 0.0008, 0.0009000000000000001 } },
    { "cosine", 1, 1, { 0.0 } },
    { "linear", 20, 3, { 0.0, 0.0003333333333333333, 0.0006666666666666666, 0.001, 0.0009411764705882353, 0.0008823529411764706, 0.0008235294117647058, 0.0007647058823529411, 0.0007058823529411765, 0.0006470588235294118, 0.0005882352941176471, 0.0005294117647058824, 0.00047058823529411766, 0.0004117647058823529, 0.00035294117647058826, 0.00029411764705882356, 0.00023529411764705883, 0.00017647058823529413, 0.00011764705882352942, 5.882352941176471e-05 } },
    { "linear", 7, 0, { 0.001, 0.0008571428571428571, 0.0007142857142857143, 0.0005714285714285714, 0.00042857142857142855, 0.0002857142857142857, 0.00014285714285714284 } },
    { "constant", 7, 3, { 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001 } },
    { "constant_with_warmup", 7, 3, { 0.0, 0.0003333333333333333, 0.0006666666666666666, 0.001, 0.001, 0.001, 0.001 } },
    { "constant_with_warmup", 7, 0, { 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001 } },
    { "cosine_with_min_lr", 20, 3, { 0.0, 0.0003333333333333333, 0.0006666666666666666, 0.001, 0.0009923378948577559, 0.00096961250323196, 0.0009325977110783264, 0.0008825540127492965, 0.0008211855863706654, 0.0007505822600994423, 0.0006731483455324374, 0.0005915207617584859, 0.0005084792382415142, 0.0004268516544675628, 0.0003494177399005578, 0.00027881441362933467, 0.00021744598725070347, 0.0001674022889216737, 0.00013038749676803994, 0.0001076621051422442 } },
    { "cosine_with_min_lr", 7, 0, { 0.001, 0.0009554359905560886, 0.0008305704108364302, 0.0006501344202803415, 0.0004498655797196586, 0.00026942958916356994, 0.00014456400944391147 } },
};

START_TEST(as_hugging_face)
{
    struct spec spec = { .learning_rate = 1e-3, .lr_scheduler_type = want[_i].kind, .warmup_steps = want[_i].warmup, .min_lr_ratio = 0.1 };
    struct schedule s;
    schedule_init(&s, &spec, want[_i].total);
    for (int i = 0; i < want[_i].total; i++) ck_assert_double_eq_tol(schedule_lr(&s, i), want[_i].lr[i], 1e-15);
}
END_TEST

START_TEST(warmup_share_is_rounded_up)
{
    struct spec spec = { .learning_rate = 1, .lr_scheduler_type = "linear", .warmup_ratio = 0.05 };
    struct schedule s;
    schedule_init(&s, &spec, 21);
    ck_assert_int_eq(s.warmup, 2);
    spec.warmup_steps = 7;              /* steps win over the ratio */
    schedule_init(&s, &spec, 21);
    ck_assert_int_eq(s.warmup, 7);
    ck_assert_double_eq(schedule_lr(&s, 21), 0);
    ck_assert_double_eq(schedule_lr(&s, 1000), 0);
}
END_TEST

int main(void)
{
    Suite *su = suite_create("schedule");
    TCase *t = tcase_create("schedule");
    tcase_add_loop_test(t, as_hugging_face, 0, (int)(sizeof want / sizeof want[0]));
    tcase_add_test(t, warmup_share_is_rounded_up);
    suite_add_tcase(su, t);
    SRunner *r = srunner_create(su);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
