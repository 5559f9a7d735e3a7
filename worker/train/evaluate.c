#include "worker/train/evaluate.h"

#include <math.h>

int evaluate(struct run *r, double *loss, struct error *err)
{
    struct job *j = &r->job;
    struct model_loss sum = { 0 };
    int rc = OK;
    for (int64_t from = 0, rows = r->info.val_rows; from < rows && rc == OK; from += j->mesh.dp) {
        link_step(r->link, r->progress.step, "evaluate");      /* every row is progress: evaluation may outlast stall_timeout_ms */
        /* a rank without a row of its own repeats one, uncounted: with ZeRO 3 a sweep gathers weights, and all must come */
        int64_t i = from + j->mesh.dp_rank;
        struct model_loss unused = { 0 };
        const struct row *row;
        rc = loader_val(r->loader, i < rows ? i : from, &row, err);
        if (rc == OK) rc = model_row(j->model, row, err);
        if (rc == OK) rc = model_eval(j->model, i < rows ? &sum : &unused, err);
    }
    double v[2] = { sum.loss_sum, sum.weight_sum };
    if (rc == OK) rc = run_sum(r, j->mesh.all, v, 2, err);
    *loss = v[1] > 0 ? v[0] / v[1] : NAN;
    return rc;
}
