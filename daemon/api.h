/* api.h - the handlers that routes.c names. */
#ifndef RM_DAEMON_API_H
#define RM_DAEMON_API_H

#include "daemon/http.h"

typedef void handler(struct daemon *d, struct request *q);
/* api_jobs.c */
handler jobs_list, job_show, job_patch, job_delete, job_cancel, job_kill, job_pause, job_resume_post, job_requeue, job_checkpoint_now;
/* api_submit.c */
handler jobs_create, jobs_validate, jobs_preview, job_clone, arrays_create, array_show, array_cancel, import_post;
/* api_run.c: what a run left or shows */
handler job_attempts, job_ranks, job_logs, job_metrics, job_metric_names, job_checkpoints, job_artifacts, job_artifact, job_events, all_events, job_events_list, compare;
/* api_admin.c */
handler page_file, page_index, health, ready, version_show, schema_show, devices_show, queue_show, tokens_list, token_create, token_delete, audit_list, prometheus,
    backup_create, openapi_show, settings_show, webhooks_list, webhook_create, webhook_delete, webhook_test;

/* {id} of the route; false after answering 404. */
bool path_job(struct daemon *d, struct request *q, int64_t *id);
/* A positive number as {id}; answers 404 otherwise. */
bool path_number(struct request *q, int64_t *id);
/* What a spec needs of this coordinator: roots, slots, other jobs. Paths become absolute. */
void submit_check(struct daemon *d, struct spec *s, struct problems *p);
/* The live job, or answers 404 (unknown) / 409 (ended). */
struct job *live_job(struct daemon *d, struct request *q);
/* A list reply: {"items":[…],"server_time":…,"next":…|null} plus Link when there is more. Takes items. */
void reply_list(struct request *q, cJSON *items, const char *next);
/* The body as a JSON object; answers 400 and returns NULL if it is none. */
cJSON *body_object(struct request *q);
/* Opaque positions in lists: a row id with a check. */
void cursor_make(char out[40], int64_t id);
bool cursor_parse(const char *text, int64_t *id);
/* Removes an ended job, its rows and its folder. */
int job_forget(struct daemon *d, int64_t id, struct error *err);

#endif
