#include "api/client.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PUSH_ANSWER_MAX = 65536, CONNECT_MS = 5000, TOTAL_MS = 120000 };      /* total: a submit waits for the worker's plan */

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

/* Enough to be polite to a server that writes before it closes; who writes more is hung up on, its status is known by then. */
static size_t on_ignored(char *data, size_t size, size_t n, void *arg)
{
    size_t *left = arg;
    (void)data;
    n *= size;
    if (n > *left) return 0;
    *left -= n;
    return n;
}

int client_push(const struct client_push *p, long *status, struct error *err)
{
    size_t left = PUSH_ANSWER_MAX;
    char why[CURL_ERROR_SIZE] = "";
    long number = 0;
    struct curl_slist *headers = curl_slist_append(NULL, "Expect:");
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    CURL *c = curl_easy_init();
    *status = 0;
    if (c == NULL) abort();
    for (int i = 0; p->headers[i]; i++) headers = curl_slist_append(headers, p->headers[i]);
    curl_easy_setopt(c, CURLOPT_URL, p->url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, p->body);
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(p->body));
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_ignored);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &left);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, p->connect_ms);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, p->total_ms);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROXY, "");
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, 2L);
    curl_easy_setopt(c, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (p->ca) {
        curl_easy_setopt(c, CURLOPT_CAINFO, p->ca);
        curl_easy_setopt(c, CURLOPT_CAPATH, NULL);
    }
    curl_easy_setopt(c, CURLOPT_USERAGENT, "ringmaster/" RM_VERSION);
    CURLcode rc = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, status);
    curl_easy_getinfo(c, CURLINFO_OS_ERRNO, &number);
    if (rc == CURLE_OK || (rc == CURLE_WRITE_ERROR && *status > 0)) rc = CURLE_OK;
    else *status = 0;
    if (rc != CURLE_OK)
        (void)error_set(err, E_IO, "%.300s%s%s%s", *why ? why : curl_easy_strerror(rc), number ? " (" : "", number ? strerror((int)number) : "", number ? ")" : "");
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    return rc == CURLE_OK ? OK : E_IO;
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
