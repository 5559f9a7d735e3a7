/* What a rank or a client sends, cut anywhere: the line reader, whatever the pieces, never breaks and always finds the same lines. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen { int64_t lines; size_t bytes; };

static void on_line(void *arg, cJSON *m)
{
    struct seen *s = arg;
    double v;
    int64_t n;
    s->lines++;
    s->bytes += strlen(json_str(m, "t") ? json_str(m, "t") : "");
    (void)json_int(m, "step", &n);
    (void)json_number(json_get(m, "loss"), &v);
    char *again = json_line(m);
    cJSON *back = NULL;
    /* what we took we can write and take again */
    assert(json_parse(&back, again, strlen(again), &json_limits_request, NULL) == OK);
    cJSON_Delete(back);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct line_reader whole = { 0 }, cut = { 0 };
    struct seen a = { 0 }, b = { 0 };
    line_reader_feed(&whole, (const char *)data, size, on_line, &a);
    for (size_t i = 0; i < size;) {
        size_t n = 1 + (i * 7 + size) % 13;
        if (n > size - i) n = size - i;
        line_reader_feed(&cut, (const char *)data + i, n, on_line, &b);
        i += n;
    }
    assert(a.lines == b.lines && a.bytes == b.bytes && whole.malformed == cut.malformed && whole.oversized == cut.oversized);
    line_reader_release(&whole);
    line_reader_release(&cut);
    return 0;
}
