/* report.c - how a job ended, for people and as one JSON object; the same for `run`, `watch` and `submit --wait`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/cli/cli.h"

static void print_summary(const struct ending *e)
{
    char a[HUMAN], b[HUMAN];
    double v;
    const cJSON *s = e->summary;
    (void)printf("%s", e->state);
    if (strcasecmp(e->state, "succeeded") != 0) (void)printf(" (%s)%s%s", e->reason ? e->reason : "?", e->detail && *e->detail ? ": " : "", e->detail ? e->detail : "");
    (void)printf("\n");
    bool idle = s && strcasecmp(e->state, "succeeded") == 0 && e->detail && *e->detail;       /* resumed at its end: there are no figures */
    if (idle) (void)printf("%s\n", e->detail);
    else if (s) {
        (void)printf("%.0f steps", json_num(s, "steps", 0));
        if (e->seconds >= 0) (void)printf(" in %s", human_time(a, e->seconds));
        if (json_number(json_get(s, "loss"), &v)) {
            (void)printf(", loss %.4f", v);
            if (json_number(json_get(s, "first_loss"), &v)) (void)printf(" (from %.4f)", v);
        }
        (void)printf(", %s tokens/s, communication %.1f %%\n", human_count(a, json_num(s, "tokens_per_s", 0)), 100 * json_num(s, "comm_share", 0));
        const cJSON *peak = json_get(s, "peak_bytes_by_rank"), *sent = json_get(s, "sent_bytes_by_rank");
        (void)printf("rank   peak memory          sent\n");
        for (int i = 0; i < cJSON_GetArraySize(peak); i++) {
            double pb = 0, sb = 0;
            (void)json_number(cJSON_GetArrayItem(peak, i), &pb);
            (void)json_number(cJSON_GetArrayItem(sent, i), &sb);
            (void)printf("%4d  %12s  %12s\n", i, human_bytes(a, pb), human_bytes(b, sb));
        }
        if (json_str(s, "output_dir")) (void)printf("output: %s\n", json_str(s, "output_dir"));
    }
    char *dir = e->job_dir ? printable(e->job_dir, strlen(e->job_dir), false) : NULL;
    if (dir) (void)printf("logs:   %s\n", dir);
    else if (e->id) (void)printf("logs:   ringmaster logs %s\n", e->id);
    free(dir);
}

int cli_report(struct cli *c, const struct ending *e)
{
    if (c->json) {
        cJSON *o = cJSON_CreateObject();
        if (e->id) json_add_str(o, "id", e->id);
        json_add_str(o, "state", e->state);
        json_add_str(o, "reason", e->reason);
        json_add_str(o, "detail", e->detail);
        for (const cJSON *v = e->summary ? e->summary->child : NULL; v; v = v->next) (void)cJSON_AddItemToObject(o, v->string, cJSON_Duplicate(v, true));
        json_add_str(o, "checkpoint", e->checkpoint);
        if (e->job_dir) json_add_str(o, "job_dir", e->job_dir);
        json_print(o);
    } else print_summary(e);
    if (strcasecmp(e->state, "succeeded") == 0) return CLI_OK;
    return strcasecmp(e->state, "failed") == 0 ? CLI_FAILED : CLI_STOPPED;
}
