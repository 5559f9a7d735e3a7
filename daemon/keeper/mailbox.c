/* mailbox.c - the socket's place when the daemon may be on another machine: three files in the attempt's folder, on a file system both see.
 *
 *   state.json   written here once a second and replaced whole: who we are (as hello), how the ranks are (as beats), a counter that shows life
 *   orders.json  written by the daemon and replaced whole: {nonce, serial, ack, stop?: {mode, reason}, checkpoints}; taken when serial is new
 *   warned       made by the batch script when Slurm says that the time is nearly up: a checkpoint, then the end
 * Records need no file of their own: the daemon reads the spool. Nothing is fsynced here: each file is out of date a second later. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/keeper/keeper.h"

static void write_state(struct keeper *k)
{
    char host[HOST_NAME_MAX + 1] = "";
    cJSON *m = server_hello_json(k);
    const char *slurm = getenv("SLURM_JOB_ID");
    (void)gethostname(host, sizeof host - 1);
    json_add_str(m, "host", host);
    if (slurm) json_add_str(m, "slurm_job", slurm);
    json_add_int(m, "started_ms", k->started_ms);
    json_add_int(m, "beat", ++k->beats);
    json_add_int(m, "orders", k->orders);
    json_add_int(m, "spool_dropped", k->spool.dropped);
    cJSON_DeleteItemFromObjectCaseSensitive(m, "ranks");
    (void)cJSON_AddItemToObject(m, "ranks", server_beats_json(k));
    char *text = json_line(m), *path = xasprintf("%s/state.json", k->dir), *tmp = xasprintf("%s.tmp", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write_all(fd, text, strlen(text), NULL) == OK;
    if (fd >= 0) ok &= close(fd) == 0;
    if (!ok || rename(tmp, path) < 0) (void)unlink(tmp);
    free(text);
    free(path);
    free(tmp);
    cJSON_Delete(m);
}

static void take_orders(struct keeper *k)
{
    static const struct json_limits limits = { 65536, 8, 200 };
    char *path = xasprintf("%s/orders.json", k->dir);
    cJSON *o = NULL;
    int64_t serial = 0, n = 0;
    if (access(path, F_OK) == 0 && json_parse_file(&o, path, &limits, NULL) == OK && json_int(o, "serial", &serial) && serial > k->orders) {
        const char *nonce = json_str(o, "nonce"), *mode = json_str(json_get(o, "stop"), "mode");
        if (nonce && strcmp(nonce, k->nonce) == 0) {
            k->orders = serial;
            if (json_int(o, "ack", &n)) server_ack(k, n);
            if (mode) gang_stop(k, mode, json_str(json_get(o, "stop"), "reason"));
            if (json_int(o, "checkpoints", &n) && n > k->saves) {
                k->saves = n;
                gang_checkpoint(k);
            }
        }
    }
    cJSON_Delete(o);
    free(path);
}

void mailbox_tick(struct keeper *k)
{
    char *warned = xasprintf("%s/warned", k->dir);
    if (k->phase == KEEPER_RUNNING && access(warned, F_OK) == 0) gang_stop(k, "checkpoint", "slurm_time_limit");
    free(warned);
    take_orders(k);
    write_state(k);
}
