/* message.h - what ranks, keeper and daemon say to each other: one JSON object per line, at most MESSAGE_MAX bytes.
 *
 * Rank -> keeper (fd 3, a stream socket pair), member "t":
 *   hello       {rank, pid, protocol}                       first line
 *   ready       {peak_bytes, device}                        memory taken, groups connected, first row loaded
 *   beat        {step, phase}                               each second, from the link's own thread
 *   metrics     {step, …}                                   one per logged step; members in metric_names below
 *   checkpoint  {step, path}                                a complete checkpoint is on disk
 *   event       {level: info|warning|error, code, text}     for people
 *   error       {code, text}                                why this rank is about to leave
 *   done        {step, loss, …}                             training finished, everything saved
 *   put {key, value}    get {key}    fence {name}           rendezvous
 * Keeper -> rank:
 *   value {key, value}    fence {name}    stop {mode: checkpoint|now}    checkpoint {}    peer_lost {rank, text}
 *
 * Keeper -> daemon (Unix socket <attempt dir>/keeper.sock; the keeper listens):
 *   hello       {protocol, job, attempt, nonce, pid, boot_id, start_time, ranks:[{rank,pid}], last_seq}
 *   record      {seq, rank, ms, m: <the rank's message>}    numbered from 1 without gaps; also in the file `spool`
 *   exit        {record: <exit.json>}                       after exit.json is on disk
 * Daemon -> keeper:
 *   attach      {nonce, after_seq}                          keeper replays from after_seq + 1
 *   ack         {seq}                                       committed up to here
 *   stop        {mode: checkpoint|now|kill, reason}         kill: no grace
 *   checkpoint  {}
 *
 * Command line: `ringmaster-keeper --dir <attempt dir> --spec <spec.json> --job ID --attempt N --nonce HEX [--resume CHECKPOINT]`; the daemon sets
 * RINGMASTER_ATTEMPT=<nonce> in its environment, and everything the keeper starts inherits it: that is how leftovers are found.
 * `spool` holds the very record lines sent to the daemon, in order; a daemon that finds the keeper gone reads the rest there.
 * The keeper leaves once exit.json is on disk and the daemon attached has acknowledged last_seq, at the latest 5 s later.
 * The plan: `ringmaster-worker --plan SPEC.json` prints one JSON object on stdout: exit code 0 and {"ok":true,"steps",
 * "policy","parallel":{"dp","ring","ulysses","why"},"ranks":[{"rank","peak_bytes","categories":{…},"buffers":[…]}],"warnings":[text]},
 * or exit code 2 and {"ok":false,"problems":[{"pointer","code","message"}]}. `--brief` leaves out "buffers".
 *
 * exit.json: {protocol, job, attempt, nonce, state: succeeded|failed|cancelled|paused, reason, detail, last_step,
 *             checkpoint, started_ms, ended_ms, ranks:[{rank, pid, code, signal, last_step, reason}], summary} */
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
};
/* Feeds bytes; calls on_line for each complete JSON object (borrowed until return). */
void line_reader_feed(struct line_reader *r, const char *data, size_t n, void (*on_line)(void *arg, cJSON *msg), void *arg);
void line_reader_release(struct line_reader *r);
/* The record as one line with its newline; the caller frees. Takes ownership of msg. */
char *message_line(cJSON *msg, size_t *len);

#endif
