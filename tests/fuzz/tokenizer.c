/* tokenizer.c - any bytes as a tokenizer.json; what opens also encodes and decodes. */
#include <stdlib.h>

#include "worker/data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello, w\xC3\xB6rld  12\n<|x|> \xE4\xBD\xA0";
    struct tokenizer *t;
    struct error err;
    struct ids ids = { 0 };
    char *back = NULL;
    size_t len;
    if (tokenizer_open_text(&t, (const char *)data, size, &err) != OK) return 0;
    if (tokenizer_encode(t, text, sizeof text - 1, true, &ids, &err) == OK) (void)tokenizer_decode(t, ids.v, ids.n, false, &back, &len, &err);
    free(back);
    ids_release(&ids);
    tokenizer_free(t);
    return 0;
}
