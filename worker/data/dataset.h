/* dataset.h - files into records, records into samples: one shape for every format people keep conversations in.
 *
 * Opening only indexes: where each record starts, how long it is, on which line. Records are read when asked for, so a data set
 * larger than memory is no problem. A .txt file is one record; in .json .jsonl .csv each element, line or row is one. */
#ifndef RM_WORKER_DATA_DATASET_H
#define RM_WORKER_DATA_DATASET_H

#include "api/spec.h"
#include "worker/data/value.h"

struct sample {
    bool is_text;
    struct value text;          /* V_STR; when is_text: plain text, every token is trained */
    struct value messages;      /* V_LIST of {role, content, reasoning_content?, tool_calls?, tool_call_id?, loss?}; role is a string */
    struct value tools;         /* V_LIST or V_UNDEFINED */
    const char *path;           /* of the file, and the line the record starts on: for messages */
    int64_t line;
};

struct dataset;

/* specs: files or folders, each may end in #N: N samples (whole copies while N exceeds the set, then a random part by seed; the first
 * ones if !shuffle). columns: {"their name": "our name"} or NULL. system: for conversations that bring none, or NULL. */
int dataset_open(struct dataset **d, const struct strlist *specs, const cJSON *columns, const char *system, bool shuffle,
                 uint64_t seed, struct error *err);
int64_t dataset_count(const struct dataset *d);                 /* samples, after #N */
/* Sample i. Everything it points to lives in pool, or in d. A bad record is E_INVALID "path:line: what". */
int dataset_sample(const struct dataset *d, int64_t i, struct pool *pool, struct sample *out, struct error *err);
/* Which of columns' names a record has: seen[c] of the c-th. Reads records in order until all are found or max_bytes are read; whether
 * the answer is complete. Records that cannot be parsed count as having none. */
bool dataset_columns_seen(const struct dataset *d, int64_t max_bytes, bool *seen);
/* Hash of names' contents and of everything above that decides samples: equal hash, equal samples. */
int dataset_hash(const struct dataset *d, uint64_t hash[2], struct error *err);
void dataset_close(struct dataset *d);

/* record.c: one parsed record (V_DICT) into a sample, whatever its shape. err says what is wrong, without the place. */
int record_sample(struct sample *out, struct pool *pool, struct value record, const char *system, struct error *err);
/* Whether record_sample would look at a column of this name: what "columns" may rename others to. */
int record_column(const char *name, struct error *err);

#endif
