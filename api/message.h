/* message.h - what ranks, keeper and daemon say to each other: one JSON object per line, at most MESSAGE_MAX bytes.
 *
 * Rank -> keeper (fd 3, a stream socket pair), member "t":
 *   hello       {rank, pid, protocol}                       first line
 *   ready       {peak_bytes, device, policy, parallel, ulysses, ring, attention}
 *                                                                                 memory taken, groups connected, first row loaded
 *   beat        {step, phase, ticks}                        each second, from the link's own thread; any change is progress
 *   metrics     {step, …}                                   one per logged step; members in metric_names below
 *   checkpoint  {step, path}                                a complete checkpoint is on disk
 *   event       {level: info|warning|error, code, text}     for people
 *   error       {code, text}                                why this rank is about to leave
 *   done        {step, loss, tokens_per_s, comm_share, sent_bytes, peak_bytes, detail?}
 *                                                           training finished, everything saved; totals of the run, of this
 *                                                           rank; what is missing the keeper sums from the metrics records.
 *                                                           Not sent by a rank that leaves because it was asked to stop
 *   put {key, value}    get {key}    fence {name}           rendezvous
 * Keeper -> rank:
 *   value {key, value}    fence {name}    stop {mode: checkpoint|now}    checkpoint {}    peer_lost {rank, text}
 *
 * Keeper -> daemon (Unix socket <attempt dir>/keeper.sock; the keeper listens):
 *   hello       {protocol, job, attempt, nonce, pid, boot_id, start_time, ranks:[{rank,pid}], last_seq}
 *   record      {seq, rank, ms, m: <the rank's message>}    numbered from 1 without gaps; also in the file `spool`
 *   beats       {ms, ranks:[{rank, pid, step, phase, silent_ms, rss_bytes, cpu, malformed, oversized, backward, repeated,
 *                log_dropped_bytes}],
 *                spool_dropped}                             each second to who has caught up; not numbered, not spooled
 *   exit        {record: <exit.json>}                       after exit.json is on disk
 *   refused     {code: wrong_nonce|wrong_user, text}        then the connection ends
 * Records the keeper writes itself have rank -1, or its rank for m = {t: rank_exit, code, signal, reason, text}.
 * Daemon -> keeper:
 *   attach      {nonce, after_seq}                          keeper replays from after_seq + 1
 *   ack         {seq}                                       committed up to here
 *   stop        {mode: checkpoint|now|kill, reason}         kill: no grace. reason paused (or pause): the job ends PAUSED;
 *                                                           anything else: CANCELLED, and it becomes the record's detail
 *   checkpoint  {}
 *
 * Without a socket (--mailbox, launcher slurm) the same goes through files in the attempt's folder: keeper/mailbox.c.
 *
 * Command line: `ringmaster-keeper --dir <attempt dir> --spec <spec.json> --job ID --attempt N --nonce HEX [--resume CHECKPOINT]`; the daemon sets
 * RINGMASTER_ATTEMPT=<nonce> in its environment, and everything the keeper starts inherits it: that is how leftovers are found.
 * The keeper sets RINGMASTER_JOB, the same for all attempts of a job, in the ranks'; absent where a job is never restarted.
 * `spool` holds the very record lines sent to the daemon, in order; a daemon that finds the keeper gone reads the rest there.
 * The keeper leaves once exit.json is on disk and the daemon attached has acknowledged last_seq, at the latest 5 s later.
 * The plan: `ringmaster-worker --plan SPEC.json` prints one JSON object on stdout: exit code 0 and {"ok":true,"steps",
 * "policy","parallel":{"dp","ring","ulysses","why"},"ranks":[{"rank","peak_bytes","categories":{…},"buffers":[…]}],"libraries":[{"name","bytes","basis","source"}],
 * "warnings":[text]},
 * or exit code 2 and {"ok":false,"problems":[{"pointer","code","message"}]}. `--brief` leaves out "buffers".
 *
 * exit.json: {protocol, job, attempt, nonce, state: succeeded|failed|cancelled|paused, reason, detail, last_step,
 *             checkpoint, started_ms, ended_ms, run_ms, ranks:[{rank, pid, code, signal, last_step, reason, detail}], summary}
 * Reasons (exit_reasons): finished; cancelled; paused; time_limit; rank_died (a signal), rank_failed (an exit code), oom_host, oom_gpu,
 * stalled (heartbeats come, the step does not move), heartbeat_lost (stopped or frozen whole), start_timeout, disk_full, bad_spec,
 * spawn_failed, internal. summary: {steps, loss, first_loss, tokens_per_s, comm_share, peak_bytes_by_rank, sent_bytes_by_rank, output_dir}. */
#ifndef RM_API_MESSAGE_H
#define RM_API_MESSAGE_H

#include "api/json.h"

enum { MESSAGE_MAX = 256 * 1024, MESSAGE_PROTOCOL = 1, LINK_FD = 3 };

/* Names of the numbers in a metrics record; per rank unless "(job)". Bytes and counts are exact integers. */
extern const struct metric_name { const char *name, *unit, *help; } metric_names[];
extern const int n_metric_names;

/* Splits a byte stream into lines. Lines over MESSAGE_MAX are skipped whole and counted; so are lines that are no JSON object. */
struct line_reader {
    char *buf; size_t len, cap;
    bool skipping;
    int64_t oversized, malformed;
    const char *line; size_t line_len;      /* inside on_line: the very bytes, without the newline */
};
/* Feeds bytes; calls on_line for each complete JSON object (borrowed until return). */
void line_reader_feed(struct line_reader *r, const char *data, size_t n, void (*on_line)(void *arg, cJSON *msg), void *arg);
void line_reader_release(struct line_reader *r);
/* The record as one line with its newline; the caller frees. Takes ownership of msg. */
char *message_line(cJSON *msg, size_t *len);

/* Writes a path that names <dir>/keeper.sock and fits a Unix address however long dir is (it goes through /proc/self/fd); *dirfd
 * must stay open while the path is used. */
int message_socket_path(char out[64], int *dirfd, const char *dir, struct error *err);
/* True if a failed attempt with this reason may go better when it starts again. */
bool exit_reason_retries(const char *reason);

#endif
