/* deliver.c - ringmaster-deliver: sends one webhook and says what came back; ringmasterd runs it.
 *
 * stdin: {url, body, headers: ["Name: value"], ca|null, connect_ms, total_ms}. stdout: {"status": 204} or {"error": "text"}. In a process of its own,
 * names are resolved and certificates checked without holding up the coordinator, and what a stranger's answer might break is this. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/client.h"
#include "api/file.h"
#include "api/json.h"

enum { INPUT_MAX = 4 << 20, HEADERS_MAX = 16 };

int main(void)
{
    static const struct json_limits limits = { INPUT_MAX, 4, 100 };
    const char *headers[HEADERS_MAX + 1] = { NULL };
    char *text = xmalloc(INPUT_MAX);
    cJSON *in = NULL, *out = cJSON_CreateObject(), *h;
    struct error err = { 0 };
    int64_t connect_ms = 5000, total_ms = 10000;
    long status = 0;
    int n = 0;
    open_standard_fds();
    int rc = json_parse(&in, text, fread(text, 1, INPUT_MAX, stdin), &limits, &err);
    cJSON_ArrayForEach(h, json_get(in, "headers"))
        if (cJSON_IsString(h) && n < HEADERS_MAX) headers[n++] = h->valuestring;
    (void)json_int(in, "connect_ms", &connect_ms);
    (void)json_int(in, "total_ms", &total_ms);
    struct client_push p = { json_str(in, "url"), json_str(in, "body"), json_str(in, "ca"), headers, (long)connect_ms, (long)total_ms };
    if (rc == OK && (p.url == NULL || p.body == NULL)) rc = error_set(&err, E_INVALID, "expected {url, body, headers} on stdin");
    if (rc == OK) rc = client_push(&p, &status, &err);
    if (rc == OK) json_add_int(out, "status", status);
    else json_add_str(out, "error", err.text);
    char *line = json_line(out);
    (void)printf("%s\n", line);
    free(line);
    free(text);
    cJSON_Delete(in);
    cJSON_Delete(out);
    return rc == OK ? 0 : 1;
}
