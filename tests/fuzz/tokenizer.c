/* tokenizer.c - any bytes as a tokenizer.json, up to the first byte FF; what opens encodes and decodes a sample and the bytes after it.
 * Promised of any text: what comes back is valid UTF-8, and an error leaves nothing behind. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "worker/data/tokenizer.h"

static void there_and_back(const struct tokenizer *t, const char *text, size_t len)
{
    struct error err;
    struct ids ids = { 0 };
    char *back = NULL;
    size_t back_len, bad;
    if (tokenizer_encode(t, text, len, true, &ids, &err) != OK) assert(ids.n == 0);
    else if (tokenizer_decode(t, ids.v, ids.n, false, &back, &back_len, &err) == OK) assert(utf8_valid(back, back_len, &bad));
    free(back);
    ids_release(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sample[] = "Hello, w\xC3\xB6rld  12\n<|x|> \xE4\xBD\xA0 aab abab \t it's -a-b e\xCC\x81";
    const uint8_t *cut = size ? memchr(data, 0xFF, size) : NULL;
    size_t n = cut ? (size_t)(cut - data) : size;
    struct tokenizer *t;
    struct error err;
    if (tokenizer_open_text(&t, (const char *)data, n, &err) != OK) return 0;
    there_and_back(t, sample, sizeof sample - 1);
    if (cut) there_and_back(t, (const char *)cut + 1, size - n - 1);
    tokenizer_free(t);
    return 0;
}
