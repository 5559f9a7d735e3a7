/* tokenizer_vectors.c - every vector of RM_SHARED/data/tokenizers/NAME: ids, ids_special and decoded, byte for byte.
 * usage: test_tokenizer_vectors NAME [FOLDER with tokenizer.json]; exits 77 where the files are not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/file.h"
#include "api/json.h"
#include "worker/data/nul.h"
#include "worker/data/tokenizer.h"

static int wrong;

static void complain(const char *id, const char *what, const char *detail)
{
    if (wrong++ < 20) (void)printf("%s: %s: %s\n", id, what, detail);
}

static void compare_ids(const char *id, const char *what, const cJSON *want, const struct ids *got)
{
    const cJSON *item;
    int64_t i = 0;
    char text[200];
    cJSON_ArrayForEach(item, want) {
        if (i >= got->n || (int32_t)item->valuedouble != got->v[i]) {
            (void)snprintf(text, sizeof text, "at %lld of %lld: want %d, got %d of %lld", (long long)i, (long long)cJSON_GetArraySize(want),
                           (int)item->valuedouble, i < got->n ? got->v[i] : -1, (long long)got->n);
            complain(id, what, text);
            return;
        }
        i++;
    }
    if (i != got->n) complain(id, what, "too many ids");
}

static void check_line(const struct tokenizer *t, const char *line, size_t len)
{
    struct error err = { 0 };
    struct ids ids = { 0 };
    cJSON *v = NULL;
    char *back = NULL;
    size_t back_len;
    if (nul_parse(&v, line, len, &json_limits_file, &err) != OK) {
        complain("line", "JSON", err.text);
        goto out;
    }
    const char *id = json_str(v, "id");
    const cJSON *want = json_get(v, "ids"), *special = json_get(v, "ids_special");
    size_t n = nul_show(json_get(v, "text")->valuestring), want_n = n;
    const char *text = json_str(v, "text"), *decoded = text;
    if (json_get(v, "decoded")) {
        want_n = nul_show(json_get(v, "decoded")->valuestring);
        decoded = json_str(v, "decoded");
    }
    if (tokenizer_encode(t, text, n, false, &ids, &err) != OK) complain(id, "encode", err.text);
    compare_ids(id, "ids", want, &ids);
    if (tokenizer_decode(t, ids.v, ids.n, false, &back, &back_len, &err) != OK) complain(id, "decode", err.text);
    else if (back_len != want_n || memcmp(back, decoded, want_n) != 0) complain(id, "decoded differs", back);
    ids.n = 0;
    if (tokenizer_encode(t, text, n, true, &ids, &err) != OK) complain(id, "encode", err.text);
    compare_ids(id, "ids_special", special ? special : want, &ids);
out:
    free(back);
    cJSON_Delete(v);
    ids_release(&ids);
}

int main(int argc, char **argv)
{
    struct error err = { 0 };
    const char *shared = getenv("RM_SHARED");
    struct tokenizer *t = NULL;
    char *text = NULL;
    size_t len, lines = 0;
    if (argc < 2 || argc > 3) return 2;
    if (shared == NULL) { (void)printf("SKIP: RM_SHARED is not set\n"); return 77; }
    char *folder = xasprintf("%s/data/tokenizers/%s", shared, argv[1]), *vectors = xasprintf("%s/vectors.jsonl", folder);
    int rc = file_read(vectors, 64u << 20, &text, &len, &err), exit_code = 77;
    if (rc == OK) rc = tokenizer_open(&t, argc == 3 ? argv[2] : folder, &err);
    if (rc == E_NOTFOUND) { (void)printf("SKIP: %s (a licence may keep it out)\n", err.text); goto out; }
    exit_code = 1;
    if (rc != OK) { (void)printf("%s\n", err.text); goto out; }
    for (char *p = text, *end; p < text + len; p = end + 1, lines++) {
        end = memchr(p, '\n', (size_t)(text + len - p));
        if (end == NULL) end = text + len;
        check_line(t, p, (size_t)(end - p));
    }
    (void)printf("%s: %zu vectors, %d wrong\n", argv[1], lines, wrong);
    exit_code = wrong > 0 || lines < 200;
out:
    tokenizer_free(t);
    free(text);
    free(folder);
    free(vectors);
    return exit_code;
}
