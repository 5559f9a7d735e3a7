/* template.c - any bytes as a chat template, rendered for one conversation with tools, under small bounds. */
#include <string.h>

#include "worker/data/jinja.h"

static const char vars[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":\"h\xC3\xA9llo <think>x</think>\\n\"},"
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"abcdefghi\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1.5,\"y\":[null,true,\"\\u00e9\"]}}}]},"
    "{\"role\":\"tool\",\"content\":\"{}\"},{\"role\":\"assistant\",\"content\":\"bye\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"n\":3,\"big\":123456789012345678901}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct jinja_limits limits = { 100000, (size_t)64 << 20, (size_t)4 << 20 };
    struct jinja *t;
    struct error err;
    struct pool pool = { 0 };
    struct value context;
    struct rendered out = { 0 };
    size_t bad;
    if (jinja_compile(&t, (const char *)data, size, &err) != OK) {
        if (!utf8_valid(err.text, strlen(err.text), &bad)) __builtin_trap();
        return 0;
    }
    if (value_parse(&context, &pool, vars, strlen(vars), &json_limits_request, &err) != OK) __builtin_trap();
    if (jinja_render(t, context, 1000000000, &limits, &out, &err) == OK) {
        if (!utf8_valid(out.text.p, out.text.n, &bad)) __builtin_trap();        /* text in, text out */
    } else if (!utf8_valid(err.text, strlen(err.text), &bad)) __builtin_trap();
    rendered_release(&out);
    pool_release(&pool);
    jinja_free(t);
    return 0;
}
