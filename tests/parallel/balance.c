/* balance.c - attention work of the slowest of R ring ranks over the mean, for the rows that real data sets give: real tokenizer, templates
 * and packer, then the layout. Every row alone must be even, for a step waits for its slowest rank. usage: test TOKENIZER */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/parallel/even.h"
#include "worker/data/loader.h"

static const struct { const char *path, *template; int64_t max_length; bool packing; } sets[] = {
    { "llama-factory/alpaca_en_demo.json", "chatml", 4096, true },
    { "llama-factory/alpaca_en_demo.json", "chatml", 32768, true },
    { "llama-factory/alpaca_zh_demo.json", "chatml", 8192, true },
    { "llama-factory/v1_sft_demo.jsonl", "chatml", 16384, true },
    { "llama-factory/c4_demo.jsonl", "none", 8192, true },
    { "llama-factory/c4_demo.jsonl", "none", 32768, true },
    { "long-documents/long_document_qa_en.jsonl", "chatml", 65536, true },
    { "long-documents/long_document_qa_zh.jsonl", "chatml", 65536, true },
    { "long-documents/long_document_qa_en.jsonl", "chatml", 65536, false },
};
enum { SETS = (int)(sizeof sets / sizeof sets[0]) };

static double row_evenness(const struct row *r, int R)
{
    struct layout l;
    struct error err = { 0 };
    if (layout_build(&l, r->cu, r->n_docs, r->T, R, 1, &err) != OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    double ratio = slowest_over_mean(&l);
    layout_release(&l);
    return ratio;
}

enum { RINGS = 2 };
static const struct { int R; double limit; } rings[RINGS] = { { 4, 1.1 }, { 8, 1.15 } };

/* Returns how many rows are above the limit. */
static int one(const char *shared, const char *tokenizer, int k)
{
    struct spec spec;
    struct problems p = { 0 };
    struct error err = { 0 };
    char *json = xasprintf("{\"model\":\"%s/data/tokenizers/%s\",\"dataset\":[\"%s/data/datasets/%s\"],\"output_dir\":\"/nonexistent\",\"max_length\":%lld,\"packing\":%s,"
                           "\"template\":\"%s\",\"truncation_strategy\":\"split\",\"nproc_per_node\":8,\"ring_size\":8}", shared, tokenizer, shared, sets[k].path,
                           (long long)sets[k].max_length, sets[k].packing ? "true" : "false", sets[k].template);
    struct loader *l = NULL;
    struct loader_info info;
    int bad = 0;
    double worst[RINGS] = { 0 }, sum[RINGS] = { 0 };
    if (spec_parse(&spec, json, strlen(json), &p) != OK || loader_open(&l, &spec, 0, 1, 8, NULL, NULL, &err) != OK) {
        (void)fprintf(stderr, "%s: %s\n", sets[k].path, p.n ? p.v[0].message : err.text);
        exit(1);
    }
    loader_info(l, &info);
    for (int64_t i = 0; i < info.micro_per_epoch; i++) {
        const struct row *r;
        if (loader_next(l, &r, &err) != OK) {
            (void)fprintf(stderr, "%s\n", err.text);
            exit(1);
        }
        for (int n = 0; n < RINGS; n++) {
            double s = row_evenness(r, rings[n].R);
            sum[n] += s;
            if (s > worst[n]) worst[n] = s;
            if (s <= rings[n].limit) continue;
            bad++;
            (void)fprintf(stderr, "row %lld: T %lld in %lld documents, %d ranks: %.4f\n", (long long)i, (long long)r->T, (long long)r->n_docs, rings[n].R, s);
        }
    }
    (void)printf("%-42s %6lld%s: %3lld rows, %4lld documents;", sets[k].path, (long long)sets[k].max_length, sets[k].packing ? " packed" : "       ",
                 (long long)info.micro_per_epoch, (long long)info.documents);
    for (int n = 0; n < RINGS; n++) (void)printf("  %d ranks: worst %.4f, mean %.4f", rings[n].R, worst[n], sum[n] / (double)info.micro_per_epoch);
    (void)printf("\n");
    loader_close(l);
    spec_release(&spec);
    free(json);
    return bad + (info.micro_per_epoch < 1);
}

int main(int argc, char **argv)
{
    const char *shared = getenv("RM_SHARED"), *tokenizer = argc > 1 ? argv[1] : "qwen3";
    char *have = xasprintf("%s/data/tokenizers/%s/tokenizer.json", shared ? shared : ".", tokenizer);
    if (access(have, R_OK) != 0) {
        (void)fprintf(stderr, "skipped: no %s\n", have);
        free(have);
        return 77;
    }
    free(have);
    int bad = 0;
    for (int k = 0; k < SETS; k++) bad += one(shared, tokenizer, k);
    return bad != 0;
}
