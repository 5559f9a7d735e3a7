/* What a client puts into requests: ids, cursors, paths, Host, Range, webhook addresses, figures. The first byte picks the parser. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/advisor.h"
#include "daemon/api.h"
#include "daemon/auth.h"
#include "daemon/daemon.h"
#include "daemon/metrics.h"
#include "daemon/paths.h"
#include "daemon/routes.h"
#include "daemon/webhooks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count(void *arg, const char *name, double v)
{
    (void)v;
    assert(strlen(name) < 80 && ++*(int *)arg <= 128);
}

static void figures(const char *text, size_t n)
{
    cJSON *m = NULL;
    int seen = 0;
    char advice[600];
    static struct spec s = { .nproc_per_node = 2, .memory_limit_bytes = 1000 };
    struct advisor a = { 0 };
    if (json_parse(&m, text, n, &json_limits_request, NULL) != OK || !cJSON_IsObject(m)) { cJSON_Delete(m); return; }
    s.sequence_parallel_method = "auto";
    metrics_each(m, count, &seen);
    for (int i = 0; i < 50; i++) (void)advisor_step(&a, &s, i % 2, m, advice);
    cJSON_Delete(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    char *text = xstrndup((const char *)data + 1, size - 1), again[40], *roots[] = { "/tmp" };
    int64_t id;
    switch (data[0] % 7) {
    case 0:
        if (cursor_parse(text, &id)) { cursor_make(again, id); assert(strcmp(again, text) == 0); }
        if (job_id_parse(text, &id)) assert(id > 0);
        break;
    case 1:
        for (int i = 0; i < n_routes; i++) {
            char *p[REQUEST_PARAMS] = { NULL };
            bool fits = route_match(routes[i].pattern, text, p);
            for (int k = 0; k < REQUEST_PARAMS; k++) { assert(fits || p[k] == NULL); free(p[k]); }
        }
        break;
    case 2: {
        static struct daemon d;
        d.set.bind = roots[0] + 4;
        (void)auth_host_ok(&d, text);
        break;
    }
    case 3: {
        uint64_t from, to, n = size * 1000;
        bool bad;
        if (http_range(text, n, &from, &to, &bad)) assert(from <= to && to < n && !bad);
        break;
    }
    case 4: {
        char host[256], port[8], path[1024];
        if (webhook_url(text, host, port, path)) assert(*host && *port && path[0] == '/' && !strpbrk(path, "\r\n ") && !strpbrk(host, "\r\n /@"));
        break;
    }
    case 5: {
        struct strlist list = { roots, 1 };
        char *p = path_under(text, &list);
        assert(p == NULL || (strncmp(p, "/tmp", 4) == 0 && (p[4] == '/' || p[4] == '\0') && strstr(p, "/../") == NULL));
        free(p);
        break;
    }
    default: figures(text, strlen(text));
    }
    free(text);
    return 0;
}
