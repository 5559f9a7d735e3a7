/* tokenizer_split.c - RM_SHARED/data/tokenizers/split-regex-oracle: how Hugging Face splits with each pattern of real models.
 * Exits 77 where the files are not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/file.h"
#include "api/json.h"
#include "worker/data/nul.h"
#include "worker/data/pretokenizer.h"

struct expected { const cJSON *next; const char *id; int input, wrong; };

static int word(void *arg, const char *text, size_t len, struct error *err)
{
    struct expected *e = arg;
    (void)err;
    if (e->next == NULL) { (void)printf("%s, input %d: one piece too many: \"%.*s\"\n", e->id, e->input, (int)len, text); e->wrong++; return OK; }
    char *want = xstrdup(e->next->valuestring);
    size_t n = nul_show(want);
    if (n != len || memcmp(want, text, n) != 0) {
        if (e->wrong++ == 0) (void)printf("%s, input %d: want \"%s\", got \"%.*s\"\n", e->id, e->input, want, (int)len, text);
    }
    free(want);
    e->next = e->next->next;
    return OK;
}

static cJSON *read_json(const char *path)
{
    struct error err = { 0 };
    char *text;
    size_t len;
    cJSON *v = NULL;
    if (file_read(path, 64u << 20, &text, &len, &err) != OK) return NULL;
    if (nul_parse(&v, text, len, &json_limits_file, &err) != OK) (void)printf("%s: %s\n", path, err.text);
    free(text);
    return v;
}

int main(void)
{
    const char *shared = getenv("RM_SHARED");
    int patterns = 0, wrong = 0;
    if (shared == NULL) { (void)printf("SKIP: RM_SHARED is not set\n"); return 77; }
    char *path = xasprintf("%s/data/tokenizers/split-regex-oracle/patterns.json", shared);
    cJSON *file = read_json(path);
    free(path);
    if (file == NULL) { (void)printf("SKIP: no split-regex-oracle under RM_SHARED\n"); return 77; }
    path = xasprintf("%s/data/tokenizers/split-regex-oracle/oracle.json", shared);
    cJSON *oracle = read_json(path);
    free(path);
    const cJSON *pattern, *defaults = json_get(file, "defaults"), *lists[] = { json_get(file, "patterns"), json_get(file, "additionalCases") };
    for (int l = 0; l < 2; l++) cJSON_ArrayForEach(pattern, lists[l]) {
        struct error err = { 0 };
        struct pretokenizer *p;
        const cJSON *inputs = json_get(pattern, "inputs"), *input, *want, *behavior = json_get(pattern, "behavior"), *invert = json_get(pattern, "invert");
        cJSON *split = cJSON_CreateObject(), *regex = cJSON_AddObjectToObject(split, "pattern");
        struct expected e = { NULL, json_str(pattern, "id"), 0, 0 };
        const cJSON *known = lists[0] ? lists[0]->child : NULL;
        if (json_str(pattern, "name")) e.id = json_str(pattern, "name");
        for (; l == 1 && known && strcmp(json_str(known, "id"), json_str(pattern, "patternId")) != 0; known = known->next) {}
        if (inputs == NULL) inputs = json_get(defaults, "inputs");
        (void)cJSON_AddStringToObject(split, "type", "Split");
        (void)cJSON_AddStringToObject(regex, "Regex", json_str(l == 1 ? known : pattern, "pattern"));
        (void)cJSON_AddStringToObject(split, "behavior", behavior ? behavior->valuestring : json_str(defaults, "behavior"));
        (void)cJSON_AddBoolToObject(split, "invert", invert ? cJSON_IsTrue(invert) : json_bool(defaults, "invert", false));
        patterns++;
        want = json_get(json_get(oracle, "tokens"), e.id);
        want = want ? want->child : NULL;
        if (pretokenizer_open(&p, split, "pre_tokenizer", &err) != OK) { (void)printf("%s: %s\n", e.id, err.text); e.wrong++; }
        else {
            struct regex_space *rs = regex_space_new();
            struct pretokenizer_space *ps = pretokenizer_space_new(rs);
            cJSON_ArrayForEach(input, inputs) {
                char *text = xstrdup(input->valuestring);
                size_t n = nul_show(text);
                if (want == NULL) { (void)printf("%s: no pieces for input %d\n", e.id, e.input); e.wrong++; break; }
                e.next = want->child;
                if (pretokenizer_run(p, ps, text, n, true, false, word, &e, &err) != OK) { (void)printf("%s: %s\n", e.id, err.text); e.wrong++; }
                if (e.next) { (void)printf("%s, input %d: pieces missing from \"%s\" on\n", e.id, e.input, e.next->valuestring); e.wrong++; }
                free(text);
                e.input++;
                want = want->next;
            }
            pretokenizer_space_free(ps);
            regex_space_free(rs);
            pretokenizer_free(p);
        }
        cJSON_Delete(split);
        wrong += e.wrong > 0;
    }
    (void)printf("%d patterns, %d wrong\n", patterns, wrong);
    cJSON_Delete(file);
    cJSON_Delete(oracle);
    return wrong > 0 || patterns < 100;
}
