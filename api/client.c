#include "api/client.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CONNECT_MS = 5000, TOTAL_MS = 120000 };      /* total: a submit waits for the worker's plan */

struct client { CURL *curl; char *base, *token; };

struct taking { struct client_reply *r; size_t cap; bool too_much; };

struct client *client_new(const char *base, const char *token)
{
    static bool started;
    if (!started) (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    started = true;
    struct client *c = xcalloc(1, sizeof *c);
    c->curl = curl_easy_init();
    if (c->curl == NULL) abort();
    c->base = xstrdup(base);
    size_t n = strlen(c->base);
    while (n > 0 && c->base[n - 1] == '/') c->base[--n] = '\0';
    c->token = token ? xstrdup(token) : NULL;
    return c;
}

void client_free(struct client *c)
{
    if (c == NULL) return;
    curl_easy_cleanup(c->curl);
    free(c->base);
    free(c->token);
    free(c);
}

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct taking *t = arg;
    n *= size;
    if (t->r->len + n > CLIENT_BODY_MAX) { t->too_much = true; return 0; }
    if (t->r->len + n + 1 > t->cap) t->r->body = xrealloc(t->r->body, t->cap = (t->r->len + n + 1) * 2);
    memcpy(t->r->body + t->r->len, data, n);
    t->r->body[t->r->len += n] = '\0';
    return n;
}

static size_t on_header(char *data, size_t size, size_t n, void *arg)
{
    struct taking *t = arg;
    static const char name[] = "content-range:";
    char line[200];
    n *= size;
    if (n >= sizeof line || n < sizeof name || strncasecmp(data, name, sizeof name - 1) != 0) return n;
    memcpy(line, data, n);
    line[n] = '\0';
    char *slash = strchr(line, '/');
    if (slash && slash[1] >= '0' && slash[1] <= '9') t->r->total = atoll(slash + 1);
    return n;
}

int client_call(struct client *c, const char *method, const char *path, const char *body, const char *header, struct client_reply *r, struct error *err)
{
    struct taking t = { .r = r };
    struct curl_slist *headers = NULL;
    char why[CURL_ERROR_SIZE] = "";
    char *url = xasprintf("%s%s", c->base, path), *bearer = c->token ? xasprintf("Authorization: Bearer %s", c->token) : NULL;
    *r = (struct client_reply){ .total = -1, .body = xcalloc(1, 1) };
    t.cap = 1;
    if (bearer) headers = curl_slist_append(headers, bearer);
    if (body) headers = curl_slist_append(headers, "Content-Type: application/json");
    if (header) headers = curl_slist_append(headers, header);
    headers = curl_slist_append(headers, "Expect:");        /* no waiting for 100 Continue */
    curl_easy_reset(c->curl);                               /* the connection stays open */
    curl_easy_setopt(c->curl, CURLOPT_URL, url);
    curl_easy_setopt(c->curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, headers);
    if (body) {
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
    } else if (strcmp(method, "POST") == 0) {
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, "");
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE, 0L);
    }
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, &t);
    curl_easy_setopt(c->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c->curl, CURLOPT_HEADERDATA, &t);
    curl_easy_setopt(c->curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, (long)TOTAL_MS);
    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c->curl, CURLOPT_USERAGENT, "ringmaster/" RM_VERSION);
    CURLcode rc = curl_easy_perform(c->curl);
    if (rc == CURLE_OK) curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &r->status);
    curl_slist_free_all(headers);
    free(bearer);
    int status = OK;
    if (t.too_much) status = error_set(err, E_LIMIT, "%s: an answer of more than %d bytes", url, CLIENT_BODY_MAX);
    else if (rc != CURLE_OK) status = error_set(err, E_IO, "%s: %s", c->base, *why ? why : curl_easy_strerror(rc));
    free(url);
    return status;
}

void client_reply_release(struct client_reply *r)
{
    free(r->body);
    *r = (struct client_reply){ 0 };
}

char *client_escape(const char *text)
{
    static const char hex[] = "0123456789ABCDEF";
    char *out = xmalloc(strlen(text) * 3 + 1), *p = out;
    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        bool plain = (*s >= '0' && *s <= '9') || (*s >= 'A' && *s <= 'Z') || (*s >= 'a' && *s <= 'z') || strchr("-._~", *s);
        if (plain) *p++ = (char)*s;
        else { *p++ = '%'; *p++ = hex[*s >> 4]; *p++ = hex[*s & 15]; }
    }
    *p = '\0';
    return out;
}
