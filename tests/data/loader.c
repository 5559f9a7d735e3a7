#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/data/loader.h"
#include "worker/data/order.h"
#include "tests/suite.h"

static char folder[64];

/* 60 records of lengths from 2 to 200, every one with its own words. */
static char *data_file(void)
{
    char *path = xasprintf("%s/data.jsonl", folder);
    FILE *f = fopen(path, "w");
    uint64_t s = 7;
    for (int i = 0; i < 60; i++) {
        char text[256];
        int n = (int)(order_next(&s) % 200);
        for (int k = 0; k < n; k++) text[k] = (char)('a' + (i + k) % 26);
        text[n] = '\0';
        (void)fprintf(f, "{\"text\":\"%d:%s\"}\n", i, text);
    }
    ck_assert_int_eq(fclose(f), 0);
    return path;
}

static void make_spec(struct spec *s, const char *path, const char *more)
{
    struct problems p = { 0 };
    char *json = xasprintf("{\"model\":\"%s\",\"dataset\":[\"%s\"],\"output_dir\":\"%s/out\",\"max_length\":128%s}", folder, path, folder, more);
    ck_assert_msg(spec_parse(s, json, strlen(json), &p) == OK, "%s", p.n ? p.v[0].message : "");
    free(json);
}

static void check_row(const struct row *r, int multiple)
{
    ck_assert_int_eq(r->T % multiple, 0);
    ck_assert_int_eq(r->cu[0], 0);
    ck_assert_int_eq(r->cu[r->n_docs], r->T);
    int64_t trained = 0;
    for (int64_t d = 0; d < r->n_docs; d++) {
        ck_assert(r->cu[d] < r->cu[d + 1]);
        for (int64_t t = r->cu[d]; t < r->cu[d + 1]; t++) {
            ck_assert_int_eq(r->positions[t], t - r->cu[d]);                        /* LLaMA-Factory #7318: restart at 0 */
            bool pad = t >= r->tokens_real;
            if (pad) ck_assert(r->labels[t] == -100 && r->weights[t] == 0.0f && r->cu[d] == r->tokens_real);
            else if (t + 1 == r->cu[d + 1]) ck_assert_int_eq(r->labels[t], -100);  /* never across a border */
            else ck_assert_int_eq(r->labels[t], r->ids[t + 1]);
            trained += r->labels[t] != -100;
            ck_assert((r->labels[t] != -100) == (r->weights[t] > 0.0f));
        }
    }
    ck_assert_int_eq(trained, r->tokens_trained);
}

static int by_value(const void *a, const void *b) { return *(const int64_t *)a < *(const int64_t *)b ? -1 : *(const int64_t *)a > *(const int64_t *)b; }

/* Sums of each document's tokens, times position: a fingerprint of what came, whatever the order. */
static int64_t fingerprints(const struct row *r, int64_t *out)
{
    int64_t n = 0;
    for (int64_t d = 0; d < r->n_docs && r->cu[d] < r->tokens_real; d++) {
        uint64_t h = 0;
        for (int64_t t = r->cu[d]; t < r->cu[d + 1]; t++) h = h * 31 + (uint64_t)r->ids[t];
        out[n++] = (int64_t)(h >> 1);
    }
    return n;
}

/* DeepSpeed #7484 (duplicated chunks, empty second epoch), axolotl #1375 (borders of the second row of a batch), DeepSpeed #8291 (lengths no rank
 * count divides). */
START_TEST(each_document_once_per_epoch_for_any_number_of_ranks)
{
    static const int sizes[][3] = { { 1, 1, 1 }, { 2, 1, 2 }, { 3, 2, 4 }, { 4, 3, 3 } };      /* ranks, batch, multiple */
    int64_t want[400], n_want = 0;
    for (int packing = 0; packing < 2; packing++)
        for (size_t z = 0; z < 4; z++)
            for (int epoch = 0; epoch < 2; epoch++) {
                int64_t got[400], n = 0;
                for (int rank = 0; rank < sizes[z][0]; rank++) {
                    char *path = data_file(), *more = xasprintf(",\"packing\":%s,\"per_device_train_batch_size\":%d", packing ? "true" : "false", sizes[z][1]);
                    struct spec s;
                    struct loader *l;
                    struct loader_info info;
                    struct error err = { 0 };
                    int64_t max_T, max_docs;
                    make_spec(&s, path, more);
                    ck_assert_msg(loader_open(&l, &s, rank, sizes[z][0], sizes[z][2], NULL, NULL, &err) == OK, "%s", err.text);
                    loader_info(l, &info);
                    loader_bounds(l, &max_T, &max_docs);
                    ck_assert_int_eq(info.micro_per_epoch, (info.rows_per_epoch + sizes[z][0] * sizes[z][1] - 1) / (sizes[z][0] * sizes[z][1]));
                    ck_assert_int_eq(loader_seek(l, epoch * info.micro_per_epoch, NULL), OK);
                    for (int64_t k = 0; k < info.micro_per_epoch; k++) {
                        const struct row *r;
                        ck_assert_int_eq(loader_next(l, &r, NULL), OK);
                        check_row(r, sizes[z][2]);
                        ck_assert(r->T <= max_T && r->n_docs <= max_docs);
                        ck_assert_int_eq(r->epoch, epoch);
                        n += fingerprints(r, got + n);
                    }
                    loader_close(l);
                    spec_release(&s);
                    free(path);
                    free(more);
                }
                qsort(got, (size_t)n, sizeof *got, by_value);
                if (n_want == 0) { n_want = n; memcpy(want, got, sizeof got); }
                ck_assert_int_eq(n, n_want);
                ck_assert_int_eq(memcmp(got, want, (size_t)n * sizeof *got), 0);
            }
    ck_assert_int_ge(n_want, 60);
}
END_TEST

/* llm.c #613, prime-rl #745: a loader that resumes at the wrong batch. */
START_TEST(ranks_share_one_order_and_seek_returns_to_it)
{
    char *path = data_file();
    struct spec s;
    struct loader *one, *two[2];
    const struct row *r, *q;
    make_spec(&s, path, ",\"packing\":true");
    ck_assert_int_eq(loader_open(&one, &s, 0, 1, 1, NULL, NULL, NULL), OK);
    for (int d = 0; d < 2; d++) ck_assert_int_eq(loader_open(&two[d], &s, d, 2, 1, NULL, NULL, NULL), OK);
    struct loader_info info;
    loader_info(one, &info);
    ck_assert_double_gt(info.packing_efficiency, 0.85);
    for (int64_t k = 0; k < info.rows_per_epoch / 2 * 2; k++) {
        ck_assert_int_eq(loader_next(one, &r, NULL), OK);
        ck_assert_int_eq(loader_next(two[k % 2], &q, NULL), OK);
        ck_assert_int_eq(r->T, q->T);
        ck_assert_int_eq(memcmp(r->ids, q->ids, (size_t)r->T * sizeof *r->ids), 0);
    }
    /* continuation: micro-batch 7 is the same after a seek, also into the second epoch, as when read through */
    for (int64_t at = 7; at < 3 * info.micro_per_epoch; at += info.micro_per_epoch) {
        struct loader *through;
        ck_assert_int_eq(loader_open(&through, &s, 0, 1, 1, NULL, NULL, NULL), OK);
        for (int64_t k = 0; k <= at; k++) ck_assert_int_eq(loader_next(through, &r, NULL), OK);
        ck_assert_int_eq(loader_position(through), at + 1);
        ck_assert_int_eq(loader_seek(one, at, NULL), OK);
        ck_assert_int_eq(loader_next(one, &q, NULL), OK);
        ck_assert_int_eq(loader_position(one), at + 1);
        ck_assert_int_eq(r->T, q->T);
        ck_assert_int_eq(memcmp(r->ids, q->ids, (size_t)r->T * sizeof *r->ids), 0);
        loader_close(through);
    }
    loader_close(one);
    for (int d = 0; d < 2; d++) loader_close(two[d]);
    spec_release(&s);
    free(path);
}
END_TEST

START_TEST(epochs_differ_and_seeds_differ)
{
    char *path = data_file();
    const char *more[] = { "", ",\"seed\":43", ",\"dataset_shuffle\":false" };
    int64_t first[3][2];
    for (int i = 0; i < 3; i++) {
        struct spec s;
        struct loader *l;
        struct loader_info info;
        const struct row *r;
        make_spec(&s, path, more[i]);
        ck_assert_int_eq(loader_open(&l, &s, 0, 1, 1, NULL, NULL, NULL), OK);
        loader_info(l, &info);
        for (int e = 0; e < 2; e++) {
            ck_assert_int_eq(loader_seek(l, e * info.micro_per_epoch, NULL), OK);
            int64_t h = 0;
            for (int k = 0; k < 5; k++) { ck_assert_int_eq(loader_next(l, &r, NULL), OK); h = h * 1000 + r->index; }
            first[i][e] = h;
        }
        loader_close(l);
        spec_release(&s);
    }
    ck_assert_int_ne(first[0][0], first[0][1]);
    ck_assert_int_ne(first[0][0], first[1][0]);
    ck_assert_int_eq(first[2][0], 1002003004);
    ck_assert_int_eq(first[2][1], 1002003004);
    free(path);
}
END_TEST

START_TEST(end_of_turn_is_trained_though_pad_is_eos)        /* unsloth #416, axolotl #3756 */
{
    char *path = xasprintf("%s/chat.jsonl", folder);
    const char *text = "{\"query\":\"q\",\"response\":\"a\"}\n";
    ck_assert_int_eq(file_write(path, text, strlen(text), NULL), OK);
    struct spec s;
    struct loader *l;
    const struct row *r;
    make_spec(&s, path, "");
    ck_assert_int_eq(loader_open(&l, &s, 0, 1, 16, NULL, NULL, NULL), OK);
    ck_assert_int_eq(loader_next(l, &r, NULL), OK);
    int eos_trained = 0;
    for (int64_t t = 0; t < r->T; t++) eos_trained += r->labels[t] == 258;
    ck_assert_int_eq(eos_trained, 1);                       /* the answer's; neither the question's nor padding's */
    ck_assert_int_eq(r->tokens_trained, 3);                 /* a <|im_end|> \n */
    ck_assert(r->T > r->tokens_real && r->ids[r->T - 1] == 258);
    loader_close(l);
    spec_release(&s);
    free(path);
}
END_TEST

START_TEST(long_documents)
{
    static const struct { const char *name, *how; int docs, dropped; int64_t tokens; } cases[] = {
        { "l.jsonl", "delete", 0, 1, 0 }, { "l.jsonl", "left", 1, 0, 128 }, { "l.jsonl", "right", 0, 1, 0 }, { "l.jsonl", "split", 1, 2, 0 },
        { "l.txt", "delete", 3, 0, 301 }, { "l.txt", "right", 1, 0, 128 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char word[301], *path = xasprintf("%s/%s", folder, cases[i].name), *more = xasprintf(",\"truncation_strategy\":\"%s\"", cases[i].how);
        memset(word, 'w', 300);
        word[300] = '\0';
        char *text = strstr(cases[i].name, "txt") ? xstrdup(word) : xasprintf("{\"query\":\"%s\",\"response\":\"a\"}", word);
        ck_assert_int_eq(file_write(path, text, strlen(text), NULL), OK);
        struct spec s;
        struct loader *l;
        struct loader_info info;
        struct error err = { 0 };
        make_spec(&s, path, more);
        int rc = loader_open(&l, &s, 0, 1, 1, NULL, NULL, &err);
        if (cases[i].docs == 0) {
            ck_assert_int_eq(rc, E_INVALID);
            ck_assert_ptr_nonnull(strstr(err.text, "empty dataset"));
        } else {
            ck_assert_msg(rc == OK, "%s", err.text);
            loader_info(l, &info);
            ck_assert_int_eq(info.documents, cases[i].docs);
            ck_assert_int_eq(info.documents_dropped, cases[i].dropped);
            if (cases[i].tokens) ck_assert_int_eq(info.tokens, cases[i].tokens);
            loader_close(l);
        }
        spec_release(&s);
        free(text); free(path); free(more);
    }
}
END_TEST

START_TEST(split_sets_aside_whole_samples)
{
    char *path = data_file();
    struct spec s;
    struct loader *l;
    struct loader_info info;
    make_spec(&s, path, ",\"split_dataset_ratio\":0.1,\"truncation_strategy\":\"right\"");
    ck_assert_int_eq(loader_open(&l, &s, 0, 1, 2, NULL, NULL, NULL), OK);
    loader_info(l, &info);
    ck_assert_int_eq(info.val_rows, 6);
    ck_assert_int_eq(info.documents, 54);
    int64_t seen[60], n = 0;
    const struct row *r;
    for (int64_t i = 0; i < 6; i++) { ck_assert_int_eq(loader_val(l, i, &r, NULL), OK); check_row(r, 2); n += fingerprints(r, seen + n); }
    for (int64_t k = 0; k < info.micro_per_epoch; k++) { ck_assert_int_eq(loader_next(l, &r, NULL), OK); n += fingerprints(r, seen + n); }
    qsort(seen, (size_t)n, sizeof *seen, by_value);
    ck_assert_int_eq(n, 60);
    for (int64_t i = 1; i < n; i++) ck_assert(seen[i] != seen[i - 1]);
    ck_assert_int_eq(loader_val(l, 6, &r, NULL), E_INVALID);
    loader_close(l);
    spec_release(&s);
    free(path);
}
END_TEST

START_TEST(streaming_gives_the_same_documents)
{
    char *path = data_file();
    int64_t want[200], n_want = 0;
    struct spec s;
    struct loader *l;
    struct loader_info info;
    const struct row *r;
    struct error err = { 0 };
    make_spec(&s, path, ",\"packing\":true");
    ck_assert_int_eq(loader_open(&l, &s, 0, 1, 1, NULL, NULL, NULL), OK);
    loader_info(l, &info);
    for (int64_t k = 0; k < info.micro_per_epoch; k++) { ck_assert_int_eq(loader_next(l, &r, NULL), OK); n_want += fingerprints(r, want + n_want); }
    qsort(want, (size_t)n_want, sizeof *want, by_value);
    loader_close(l);
    spec_release(&s);
    make_spec(&s, path, ",\"packing\":true,\"streaming\":true");
    ck_assert_int_eq(loader_open(&l, &s, 0, 1, 1, NULL, NULL, &err), E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "max_steps"));
    spec_release(&s);
    make_spec(&s, path, ",\"packing\":true,\"streaming\":true,\"max_steps\":5");
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int epoch = 0; epoch < 2; epoch++) {
            int64_t got[400], n = 0;
            for (int rank = 0; rank < ranks; rank++) {
                ck_assert_msg(loader_open(&l, &s, rank, ranks, 2, NULL, NULL, &err) == OK, "%s", err.text);
                int64_t max_T, max_docs;
                loader_bounds(l, &max_T, &max_docs);
                for (;;) {
                    ck_assert_int_eq(loader_next(l, &r, NULL), OK);
                    check_row(r, 2);
                    ck_assert(r->T <= max_T && r->n_docs <= max_docs);
                    if (r->epoch > epoch) break;
                    if (r->epoch == epoch) n += fingerprints(r, got + n);
                }
                loader_close(l);
            }
            qsort(got, (size_t)n, sizeof *got, by_value);
            ck_assert_int_eq(n, n_want);
            ck_assert_int_eq(memcmp(got, want, (size_t)n * sizeof *got), 0);
        }
    struct loader *through;
    const struct row *q;
    ck_assert_int_eq(loader_open(&l, &s, 0, 1, 1, NULL, NULL, NULL), OK);
    ck_assert_int_eq(loader_open(&through, &s, 0, 1, 1, NULL, NULL, NULL), OK);
    for (int64_t k = 0; k < 100; k++) ck_assert_int_eq(loader_next(through, &q, NULL), OK);
    ck_assert_int_eq(loader_seek(l, 99, NULL), OK);
    ck_assert_int_eq(loader_next(l, &r, NULL), OK);
    ck_assert(r->T == q->T && memcmp(r->ids, q->ids, (size_t)r->T * sizeof *r->ids) == 0);
    ck_assert_int_eq(loader_seek(l, 3, NULL), OK);
    ck_assert_int_eq(loader_next(l, &r, NULL), OK);
    ck_assert_int_eq(r->index, 3);
    loader_close(l);
    loader_close(through);
    spec_release(&s);
    free(path);
}
END_TEST

START_TEST(damaged_cache_is_not_believed)
{
    char *path = data_file(), *cmd = xasprintf("ls %s/c/*.tokens > %s/list", folder, folder), *list = xasprintf("%s/list", folder), *name, *cached = xasprintf(",\"cached_dataset\":\"%s/c\"", folder);
    size_t len;
    struct spec s;
    struct loader *l;
    struct loader_info a, b;
    make_spec(&s, path, cached);
    ck_assert_int_eq(loader_open(&l, &s, 0, 1, 1, NULL, NULL, NULL), OK);
    loader_info(l, &a);
    loader_close(l);
    ck_assert_int_eq(system(cmd), 0);
    ck_assert_int_eq(file_read(list, 4096, &name, &len, NULL), OK);
    name[strcspn(name, "\n")] = '\0';
    char *whole;
    ck_assert_int_eq(file_read(name, 1 << 20, &whole, &len, NULL), OK);
    for (size_t at = 0; at <= len; at += len / 13) {           /* flip a byte here and there; then cut it short */
        char *broken = xmalloc(len);
        memcpy(broken, whole, len);
        if (at < len) broken[at] ^= 0x41;
        ck_assert_int_eq(file_write(name, broken, at + len / 13 > len ? len - 64 : len, NULL), OK);
        ck_assert_int_eq(loader_open(&l, &s, 0, 1, 1, NULL, NULL, NULL), OK);
        loader_info(l, &b);
        ck_assert_int_eq(memcmp(&a, &b, sizeof a), 0);
        loader_close(l);
        char *again;
        size_t n;
        ck_assert_int_eq(file_read(name, 1 << 20, &again, &n, NULL), OK);
        ck_assert(n == len && memcmp(again, whole, len) == 0);      /* made anew */
        free(again);
        free(broken);
    }
    free(whole); free(name); free(list); free(cmd); free(path); free(cached);
    spec_release(&s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("loader");
    TCase *t = tcase_create("loader");
    (void)snprintf(folder, sizeof folder, "/tmp/rm-loader-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    tcase_set_timeout(t, 60);
    tcase_add_test(t, each_document_once_per_epoch_for_any_number_of_ranks);
    tcase_add_test(t, ranks_share_one_order_and_seek_returns_to_it);
    tcase_add_test(t, epochs_differ_and_seeds_differ);
    tcase_add_test(t, end_of_turn_is_trained_though_pad_is_eos);
    tcase_add_test(t, long_documents);
    tcase_add_test(t, split_sets_aside_whole_samples);
    tcase_add_test(t, streaming_gives_the_same_documents);
    tcase_add_test(t, damaged_cache_is_not_believed);
    suite_add_tcase(s, t);
    int failed = suite_run(s, CK_FORK_GETENV);
    (void)remove_tree(folder, NULL);
    return failed;
}
