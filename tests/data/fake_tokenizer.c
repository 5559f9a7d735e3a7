/* fake_tokenizer.c - bytes are tokens 0..255; "<|name|>" of the list below are tokens from 256 on. */
#include <stdlib.h>
#include <string.h>

#include "worker/data/tokenizer.h"

static const char *const marks[] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };
struct tokenizer { int unused; };

void ids_release(struct ids *ids) { free(ids->v); *ids = (struct ids){ 0 }; }

static void push(struct ids *out, int32_t id)
{
    if (out->n == out->cap) { out->cap = out->cap ? out->cap * 2 : 64; out->v = xrealloc(out->v, (size_t)out->cap * sizeof *out->v); }
    out->v[out->n++] = id;
}

int tokenizer_open(struct tokenizer **t, const char *path, struct error *err)
{
    (void)path; (void)err;
    *t = xcalloc(1, sizeof **t);
    return OK;
}
void tokenizer_free(struct tokenizer *t) { free(t); }

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special, struct ids *out, struct error *err)
{
    (void)t; (void)special; (void)err;
    for (size_t i = 0; i < len;) {
        int hit = -1;
        for (int m = 0; m < 3; m++)
            if (len - i >= strlen(marks[m]) && memcmp(text + i, marks[m], strlen(marks[m])) == 0) hit = m;
        if (hit >= 0) { push(out, 256 + hit); i += strlen(marks[hit]); }
        else if (len - i >= 3 && memcmp(text + i, "\n\n\n", 3) == 0) { push(out, 259); i += 3; }    /* a token that can span a border */
        else push(out, (unsigned char)text[i++]);
    }
    return OK;
}
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t n, bool skip, char **text, size_t *len, struct error *err)
{
    char *s = xmalloc((size_t)n * 16 + 1);
    size_t k = 0;
    (void)t; (void)err; (void)skip;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 256) s[k++] = (char)ids[i];
        else if (ids[i] == 259) { memcpy(s + k, "\n\n\n", 3); k += 3; }
        else { memcpy(s + k, marks[ids[i] - 256], strlen(marks[ids[i] - 256])); k += strlen(marks[ids[i] - 256]); }
    }
    s[k] = '\0';
    *text = s;
    *len = k;
    return OK;
}
int32_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    (void)t;
    for (int m = 0; m < 3; m++) if (strcmp(token, marks[m]) == 0) return 256 + m;
    return -1;
}
const char *tokenizer_token(const struct tokenizer *t, int32_t id) { (void)t; return id >= 256 && id < 259 ? marks[id - 256] : NULL; }
int64_t tokenizer_size(const struct tokenizer *t) { (void)t; return 260; }
int32_t tokenizer_bos(const struct tokenizer *t) { (void)t; return -1; }
int32_t tokenizer_eos(const struct tokenizer *t) { (void)t; return 258; }
int32_t tokenizer_pad(const struct tokenizer *t) { (void)t; return 258; }       /* pad = eos: the end mark must still be trained */
