/* settings.h - the coordinator's own settings: one table gives flags, environment, configuration file and help. */
#ifndef RM_DAEMON_SETTINGS_H
#define RM_DAEMON_SETTINGS_H

#include "api/spec.h"

struct settings {
    char *home, *bind, *config, *worker, *keeper, *restore, *tls_cert, *tls_key, *webhook_ca;
    struct strlist allow_root, allow_host;
    int64_t port, slots, max_connections, max_streams, start_timeout_ms, plan_timeout_ms, request_timeout_ms, keep_days, keep_events, wal_bytes, backoff_ms;
    int64_t slurm_jobs, slurm_poll_ms, slurm_timeout_ms, slurm_settle_ms;
    bool check, help, version, remote;
};

/* Strongest first: command line, environment (RINGMASTER_<NAME>), configuration file (JSON object; --config, else <home>/config.json),
 * default. Every problem at once, named by where it was found. home becomes absolute, roots resolved. */
int settings_read(struct settings *s, int argc, char **argv, struct problems *p);
void settings_release(struct settings *s);
void settings_help(void);                       /* on stdout */
cJSON *settings_json(const struct settings *s);

#endif
