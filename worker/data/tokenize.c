/* tokenize.c - `ringmaster tokenize`: text or conversations to ids, and ids to text, line by line. */
#include "api/printable.h"
#include "worker/data/tokenize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/encode.h"
#include "worker/data/lines.h"
#include "worker/verbs.h"

#define NOT_TRAINED (-100)

struct job {
    const char *model;
    bool special, decode;
    struct tokenizer *tokenizer;
    struct chat_template *template;     /* opened when the first conversation comes */
};

static void add_number(struct buf *out, long long v, bool first)
{
    char text[32];
    (void)snprintf(text, sizeof text, first ? "%lld" : ", %lld", v);
    buf_str(out, text);
}

static void add_ids(struct buf *out, const struct ids *ids)
{
    buf_str(out, "{\"ids\": [");
    for (int64_t i = 0; i < ids->n; i++) add_number(out, ids->v[i], i == 0);
    buf_str(out, "]");
}

static int decode_line(struct job *j, struct value record, struct buf *out, struct error *err)
{
    struct value list = value_get(record, "ids");
    struct ids ids = { 0 };
    char *text = NULL;
    const char *bad;
    size_t len;
    int rc = OK;
    if (list.type != V_LIST) return error_set(err, E_INVALID, "ids: expected a list of whole numbers, found %s", value_kind(list));
    ids.v = xmalloc((list.l->n + 1) * sizeof *ids.v);
    for (size_t i = 0; i < list.l->n && rc == OK; i++) {
        struct value v = list.l->v[i];
        if (v.type != V_INT || v.i < 0 || v.i > INT32_MAX) rc = error_set(err, E_INVALID, "ids[%zu]: expected a token id, found %s", i, value_kind(v));
        else if (tokenizer_token(j->tokenizer, (int32_t)v.i) == NULL)
            rc = error_set(err, E_INVALID, "ids[%zu]: %lld is no token; ids go up to %lld", i, (long long)v.i, (long long)tokenizer_size(j->tokenizer) - 1);
        else ids.v[ids.n++] = (int32_t)v.i;
    }
    if (rc == OK) rc = tokenizer_decode(j->tokenizer, ids.v, ids.n, !j->special, &text, &len, err);
    if (rc == OK) {
        buf_str(out, "{\"text\": ");
        (void)value_dumps(out, v_str(text, len), -1, false, &bad);
        buf_str(out, "}");
    }
    free(text);
    ids_release(&ids);
    return rc;
}

static int conversation_line(struct job *j, struct value record, struct pool *pool, struct buf *out, struct error *err)
{
    struct sample sample = { 0 };
    struct encoded e = { 0 };
    int rc = OK;
    if (j->template == NULL) rc = template_open(&j->template, j->model, "auto", j->tokenizer, err);
    if (rc == OK) rc = record_sample(&sample, pool, record, NULL, err);
    if (rc != OK) return rc;
    struct encoder encoder = { j->tokenizer, j->template, LOSS_DEFAULT };
    rc = encode_sample(&encoder, &sample, &e, err);
    if (rc == OK) {
        int span = 0;
        add_ids(out, &e.ids);
        buf_str(out, ", \"labels\": [");
        for (int64_t i = 0; i < e.ids.n; i++) {
            while (span < e.n_spans && e.spans[span].to <= i) span++;
            bool trained = span < e.n_spans && e.spans[span].from <= i && e.spans[span].weight > 0;
            add_number(out, trained ? e.ids.v[i] : NOT_TRAINED, i == 0);
        }
        buf_str(out, "]}");
    }
    encoded_release(&e);
    return rc;
}

static int tokenize_line(void *arg, struct value record, struct pool *pool, struct buf *out, struct error *err)
{
    struct job *j = arg;
    struct ids ids = { 0 };
    if (record.type != V_DICT) return error_set(err, E_INVALID, "expected an object, found %s", value_kind(record));
    if (j->decode) return decode_line(j, record, out, err);
    struct value text = value_get(record, "text");
    if (text.type == V_UNDEFINED) return conversation_line(j, record, pool, out, err);
    if (text.type != V_STR) return error_set(err, E_INVALID, "text: expected a string, found %s", value_kind(text));
    int rc = tokenizer_encode(j->tokenizer, text.s.p, text.s.n, j->special, &ids, err);
    if (rc == OK) {
        add_ids(out, &ids);
        buf_str(out, "}");
    }
    ids_release(&ids);
    return rc;
}

int verb_tokenize(int argc, char **argv)
{
    struct job j = { .special = true };
    struct error err = { 0 };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--model") == 0 && i + 1 < argc) j.model = argv[++i];
        else if (strcmp(argv[i], "--no-special") == 0) j.special = false;
        else if (strcmp(argv[i], "--decode") == 0) j.decode = true;
        else if (strcmp(argv[i], "--json") == 0) continue;      /* JSON either way */
        else {
            print_line(stderr, "ringmaster tokenize: %s: unknown, or without its value", argv[i]);
            return 2;
        }
    }
    if (j.model == NULL) {
        (void)fputs("usage: ringmaster tokenize --model DIR [--no-special] [--decode]\n"
                    "Reads {\"text\": …} or {\"messages\": …} a line (with --decode {\"ids\": …}) and writes {\"ids\": …} with \"labels\" for conversations.\n", stderr);
        return 2;
    }
    int rc = tokenizer_open(&j.tokenizer, j.model, &err);
    if (rc == OK) rc = lines_run(stdin, stdout, tokenize_line, &j, &err);
    template_free(j.template);
    tokenizer_free(j.tokenizer);
    if (rc == OK) return 0;
    print_line(stderr, "ringmaster tokenize: %s", err.text);
    return rc == E_IO || rc == E_INTERNAL ? 70 : rc == E_NOMEM ? 71 : rc == E_DISK_FULL ? 73 : 2;
}

int tokenizer_check(const char *path, int64_t vocab, char **summary, struct error *err)
{
    static const char sample[] = "Ringmaster 1, 23 — naïve café, 你好\n\tit's";
    struct tokenizer *t;
    struct ids ids = { 0 };
    char *text = NULL;
    size_t len;
    *summary = NULL;
    int rc = tokenizer_open(&t, path, err);
    if (rc != OK) return rc;
    rc = tokenizer_fits(t, vocab, err);
    if (rc == OK) rc = tokenizer_encode(t, sample, sizeof sample - 1, true, &ids, err);
    if (rc == OK) rc = tokenizer_decode(t, ids.v, ids.n, true, &text, &len, err);
    if (rc == OK) {
        const char *eos = tokenizer_token(t, tokenizer_eos(t)), *pad = tokenizer_token(t, tokenizer_pad(t));
        *summary = xasprintf("tokenizer: BPE, ids below %lld, end of sequence %s, padding %s", (long long)tokenizer_size(t), eos ? eos : "not set", pad ? pad : "not set");
    }
    free(text);
    ids_release(&ids);
    tokenizer_free(t);
    return rc;
}
