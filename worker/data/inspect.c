/* inspect.c - `ringmaster dataset SPEC`: the data set as it will be trained. Rows, a histogram of lengths, how full the rows are, and the
 * first documents with what is trained of them marked. Nothing is written: no cache, no output folder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/printable.h"
#include "worker/data/corpus.h"
#include "worker/data/loader.h"
#include "worker/verbs.h"

#define BINS 28                 /* powers of two up to 2^27 tokens */
#define SHOWN_TOKENS 400        /* of one document; the middle is left out */

static int bin_of(int64_t n)
{
    int b = 0;
    while (b < BINS - 1 && n > (int64_t)1 << b) b++;
    return b;
}

static char *decoded(const struct tokenizer *t, const int32_t *ids, int64_t n, size_t *len)
{
    char *text = NULL;
    if (tokenizer_decode(t, ids, n, false, &text, len, NULL) != OK) { *len = 0; return xstrdup(""); }
    return text;
}

/* Calls run() for each stretch of document i that is trained or not. */
static void stretches(const struct corpus *c, int64_t i, void (*run)(void *arg, const int32_t *ids, int64_t n, bool trained, bool gap), void *arg)
{
    const struct document *d = &c->docs[i];
    for (int64_t at = 0, k = 0; at < d->n_ids;) {
        struct span s = k < d->n_spans ? c->spans[d->span0 + k] : (struct span){ d->n_ids, d->n_ids, 0.0f };
        bool trained = at >= s.from;
        int64_t end = trained ? s.to : s.from;
        int64_t from = at, head = SHOWN_TOKENS / 2, tail = d->n_ids - SHOWN_TOKENS / 2;
        if (d->n_ids <= SHOWN_TOKENS) run(arg, c->ids + d->id0 + from, end - from, trained, false);
        else {                                                  /* clipped to the first and the last tokens of the document */
            if (from < head) run(arg, c->ids + d->id0 + from, (end < head ? end : head) - from, trained, false);
            if (from <= head && end > head) run(arg, NULL, tail - head, trained, true);
            if (end > tail) run(arg, c->ids + d->id0 + (from > tail ? from : tail), end - (from > tail ? from : tail), trained, false);
        }
        if (trained) k++;
        at = end;
    }
}

struct shown { const struct tokenizer *tok; cJSON *list; bool colour; };

static void show_text(void *arg, const int32_t *ids, int64_t n, bool trained, bool gap)
{
    struct shown *s = arg;
    size_t len;
    if (gap) { (void)printf(" …%lld tokens… ", (long long)n); return; }
    char *text = decoded(s->tok, ids, n, &len);
    (void)fputs(!trained ? "" : s->colour ? "\033[1;32m" : "[[", stdout);
    char *shown = printable(text, len, true);                   /* nothing a terminal would obey */
    (void)fputs(shown, stdout);
    free(shown);
    (void)fputs(!trained ? "" : s->colour ? "\033[0m" : "]]", stdout);
    free(text);
}

static void show_json(void *arg, const int32_t *ids, int64_t n, bool trained, bool gap)
{
    struct shown *s = arg;
    cJSON *o = cJSON_CreateObject();
    size_t len;
    if (gap) json_add_int(o, "skipped_tokens", n);
    else {
        char *text = decoded(s->tok, ids, n, &len);
        char *nul;
        while ((nul = memchr(text, '\0', len)) != NULL) *nul = ' ';
        json_add_str(o, "text", text);
        json_add_int(o, "tokens", n);
        (void)cJSON_AddBoolToObject(o, "trained", trained);
        free(text);
    }
    (void)cJSON_AddItemToArray(s->list, o);
}

static void print_human(const struct loader *l, const struct spec *spec, const struct loader_info *info, const int64_t bins[BINS], int64_t rows, struct shown *s)
{
    const struct corpus *c = loader_documents(l);
    int64_t most = 1;
    (void)printf("documents    %lld (%lld dropped: %lld too long, %lld with nothing to train)\n", (long long)info->documents,
                 (long long)info->documents_dropped, (long long)c->dropped_long, (long long)c->dropped_untrained);
    (void)printf("tokens       %lld, %lld trained (%.1f%%)\n", (long long)info->tokens, (long long)info->tokens_trained,
                 info->tokens ? 100.0 * (double)info->tokens_trained / (double)info->tokens : 0.0);
    (void)printf("rows         %lld of at most %lld tokens, %.1f%% full%s\n", (long long)info->rows_per_epoch, (long long)spec->max_length,
                 100.0 * info->packing_efficiency, spec->packing ? " (packed)" : "");
    (void)printf("longest      %lld tokens\n", (long long)info->longest);
    if (info->val_rows) (void)printf("evaluation   %lld rows\n", (long long)info->val_rows);
    (void)printf("\n  tokens up to   documents\n");
    for (int b = 0; b < BINS; b++) if (bins[b] > most) most = bins[b];
    for (int b = 0; b < BINS; b++) {
        if (bins[b] == 0) continue;
        (void)printf("  %12lld %11lld ", 1LL << b, (long long)bins[b]);
        for (int64_t k = 0; k < (bins[b] * 50 + most - 1) / most; k++) (void)putchar('#');
        (void)putchar('\n');
    }
    for (int64_t i = 0; i < rows && i < c->n_docs; i++) {
        (void)printf("\n--- document %lld: %d tokens, %lld trained%s\n", (long long)i, c->docs[i].n_ids, (long long)corpus_trained(c, i),
                     s->colour ? " (green)" : " (in [[ ]])");
        stretches(c, i, show_text, s);
        (void)putchar('\n');
    }
}

static void print_json(const struct loader *l, const struct loader_info *info, const int64_t bins[BINS], int64_t rows, struct shown *s)
{
    const struct corpus *c = loader_documents(l);
    cJSON *o = cJSON_CreateObject(), *list;
    json_add_int(o, "documents", info->documents);
    json_add_int(o, "documents_dropped", info->documents_dropped);
    json_add_int(o, "dropped_too_long", c->dropped_long);
    json_add_int(o, "dropped_untrained", c->dropped_untrained);
    json_add_int(o, "rows", info->rows_per_epoch);
    json_add_int(o, "val_rows", info->val_rows);
    json_add_int(o, "tokens", info->tokens);
    json_add_int(o, "tokens_trained", info->tokens_trained);
    json_add_int(o, "longest", info->longest);
    json_add_num(o, "packing_efficiency", info->packing_efficiency);
    list = cJSON_AddArrayToObject(o, "histogram");
    for (int b = 0; b < BINS; b++) {
        if (bins[b] == 0) continue;
        cJSON *bin = cJSON_CreateObject();
        json_add_int(bin, "tokens_up_to", (int64_t)1 << b);
        json_add_int(bin, "documents", bins[b]);
        (void)cJSON_AddItemToArray(list, bin);
    }
    list = cJSON_AddArrayToObject(o, "samples");
    for (int64_t i = 0; i < rows && i < c->n_docs; i++) {
        cJSON *doc = cJSON_CreateObject();
        json_add_int(doc, "tokens", c->docs[i].n_ids);
        json_add_int(doc, "trained", corpus_trained(c, i));
        s->list = cJSON_AddArrayToObject(doc, "parts");
        stretches(c, i, show_json, s);
        (void)cJSON_AddItemToArray(list, doc);
    }
    json_print(o);
}

static void progress(void *arg, const char *what, int64_t done, int64_t total)
{
    (void)arg;
    (void)fprintf(stderr, "\r%s %lld/%lld%s", what, (long long)done, (long long)total, done == total ? "\r\033[K" : "");
}

int verb_dataset(int argc, char **argv)
{
    const char *path = NULL;
    bool json = false;
    int64_t rows = 3, bins[BINS] = { 0 };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) json = true;
        else if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc) {
            const char *n = argv[++i];
            rows = strtoll(n, NULL, 10);
            if (*n == '\0' || strlen(n) > 9 || strspn(n, "0123456789") != strlen(n)) {
                print_line(stderr, "ringmaster dataset: --rows %s: expected a whole number, 0 or more", n);
                return 2;
            }
        }
        else if (argv[i][0] != '-' && path == NULL) path = argv[i];
        else { print_line(stderr, "ringmaster dataset: %s: unknown, or without its value", argv[i]); return 2; }
    }
    if (path == NULL) {
        (void)fputs("usage: ringmaster dataset SPEC.json [--json] [--rows N]\n", stderr);
        return 2;
    }
    struct spec spec;
    struct problems p = { 0 };
    struct loader *l;
    struct loader_info info;
    struct error err = { 0 };
    if (spec_read(&spec, path, &p) != OK) {
        for (int i = 0; i < p.n; i++) print_line(stderr, "ringmaster dataset: %s: %s: %s", path, p.v[i].pointer, p.v[i].message);
        problems_release(&p);
        return 2;
    }
    problems_release(&p);
    char *output = spec.output_dir;
    spec.output_dir = NULL;                                     /* looking writes nothing */
    spec.streaming = false;
    int rc = loader_open(&l, &spec, 0, 1, 1, isatty(2) ? progress : NULL, NULL, &err);
    if (rc == OK) {
        struct shown s = { loader_tokenizer(l), NULL, isatty(1) };
        const struct corpus *c = loader_documents(l);
        loader_info(l, &info);
        for (int64_t i = 0; i < c->n_docs; i++) bins[bin_of(c->docs[i].n_ids)]++;
        if (json) print_json(l, &info, bins, rows, &s);
        else print_human(l, &spec, &info, bins, rows, &s);
        loader_close(l);
    } else print_line(stderr, "ringmaster dataset: %s", err.text);
    spec.output_dir = output;
    spec_release(&spec);
    return rc == OK ? 0 : rc == E_IO || rc == E_INTERNAL ? 70 : rc == E_NOMEM ? 71 : 2;
}
