/* openapi.c - see openapi.h. */
#include "daemon/openapi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/spec.h"
#include "daemon/routes.h"

static const struct { const char *name; bool integer; int64_t lo, hi; const char *help; } known[] = {     /* query parameters with a type */
    { "limit", true, 1, 200, "most items" }, { "since", true, 0, INT64_C(1) << 52, "created, or printed, from then on (ms since 1970)" }, { "tail", true, 0, 1000000, "last lines" },
    { "attempt", true, 1, 1000000, "number of the attempt" }, { "max_points", true, 4, 2000, "most points of a series" }, { "from", true, 0, INT64_C(1) << 52, "first step" },
    { "to", true, 0, INT64_C(1) << 52, "last step" },
};

static cJSON *ref(const char *what)
{
    cJSON *o = cJSON_CreateObject();
    char text[100];
    (void)snprintf(text, sizeof text, "#/components/schemas/%s", what);
    json_add_str(o, "$ref", text);
    return o;
}

static void add_parameter(cJSON *list, const char *name, size_t n, const char *in)
{
    cJSON *p = cJSON_CreateObject(), *schema = cJSON_CreateObject();
    char key[60];
    (void)snprintf(key, sizeof key, "%.*s", (int)n, name);
    json_add_str(p, "name", key);
    json_add_str(p, "in", in);
    if (strcmp(in, "path") == 0) (void)cJSON_AddTrueToObject(p, "required");
    bool integer = false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, key) == 0 && strcmp(in, "query") == 0) {
            integer = true;
            json_add_str(p, "description", known[i].help);
            json_add_int(schema, "minimum", known[i].lo);
            json_add_int(schema, "maximum", known[i].hi);
        }
    json_add_str(schema, "type", integer ? "integer" : "string");
    (void)cJSON_AddItemToObject(p, "schema", schema);
    (void)cJSON_AddItemToArray(list, p);
}

static void add_answer(cJSON *responses, int status, const char *type, cJSON *schema, const char *text)
{
    char code[8];
    (void)snprintf(code, sizeof code, "%d", status);
    cJSON *r = cJSON_AddObjectToObject(responses, code);
    json_add_str(r, "description", text);
    if (type == NULL) { cJSON_Delete(schema); return; }
    cJSON *content = cJSON_AddObjectToObject(r, "content"), *media = cJSON_AddObjectToObject(content, type);
    if (schema) (void)cJSON_AddItemToObject(media, "schema", schema);
}

static cJSON *typed(const char *type)
{
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "type", type);
    return o;
}

static cJSON *operation(const struct route *r)
{
    cJSON *o = cJSON_CreateObject(), *params, *responses;
    char id[120];
    size_t n = 0;
    for (const char *p = r->method; *p; p++) id[n++] = (char)(*p | 0x20);
    for (const char *p = r->pattern; *p && n < sizeof id - 1; p++) id[n++] = (*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') ? *p : '_';
    id[n] = '\0';
    json_add_str(o, "operationId", id);
    json_add_str(o, "summary", r->summary);
    params = cJSON_AddArrayToObject(o, "parameters");
    for (const char *p = r->pattern; (p = strchr(p, '{')) != NULL; p++) add_parameter(params, p + 1, strcspn(p + 1, "*}"), "path");
    for (const char *p = r->params; *p;) {
        size_t len = strcspn(p, ",");
        add_parameter(params, p, len, "query");
        p += len + (p[len] == ',');
    }
    if (strcmp(r->method, "PATCH") == 0) {
        add_parameter(params, "If-Match", 8, "header");
    }
    if (r->body_max > 0) {
        cJSON *body = cJSON_AddObjectToObject(o, "requestBody"), *content = cJSON_AddObjectToObject(body, "content"), *media = cJSON_AddObjectToObject(content, "application/json");
        bool spec = strcmp(r->pattern, "/v1/jobs") == 0 || strcmp(r->pattern, "/v1/jobs:validate") == 0 || strcmp(r->pattern, "/v1/jobs:preview") == 0;
        cJSON *any = spec ? NULL : typed("object");
        if (any && r->body_max == BODY_EMPTY) json_add_int(any, "maxProperties", 0);
        (void)cJSON_AddItemToObject(media, "schema", spec ? ref("Spec") : any);
        (void)cJSON_AddBoolToObject(body, "required", spec || strcmp(r->pattern, "/v1/tokens") == 0 || strcmp(r->method, "PATCH") == 0);
    }
    responses = cJSON_AddObjectToObject(o, "responses");
    int status = atoi(r->answer);
    const char *kind = r->answer + 4;
    if (strcmp(kind, "html") == 0) { add_answer(responses, status, "text/html", typed("string"), "the page"); add_answer(responses, 303, NULL, NULL, "the cookie is set"); }
    else if (strcmp(kind, "js") == 0) add_answer(responses, status, "text/javascript", typed("string"), "the file");
    else if (strcmp(kind, "css") == 0) add_answer(responses, status, "text/css", typed("string"), "the file");
    else if (strcmp(kind, "text") == 0) add_answer(responses, status, "text/plain", typed("string"), "text");
    else if (strcmp(kind, "file") == 0) add_answer(responses, status, "application/octet-stream", NULL, "the file");
    else if (strcmp(kind, "stream") == 0) add_answer(responses, status, "text/event-stream", typed("string"), "events");
    else if (strcmp(kind, "none") == 0) add_answer(responses, status, NULL, NULL, "done");
    else if (strcmp(kind, "Job") == 0) add_answer(responses, status, "application/json", ref("Job"), "the job");
    else if (strcmp(kind, "Preview") == 0) add_answer(responses, status, "application/json", ref("Preview"), "the data");
    else if (strcmp(kind, "list") == 0 || strcmp(kind, "JobList") == 0) add_answer(responses, status, "application/json", ref("List"), "a list");
    else add_answer(responses, status, "application/json", typed("object"), "an object");
    if (strcmp(r->pattern, "/v1/jobs") == 0 && status == 201) add_answer(responses, 200, "application/json", typed("object"), "dry run: spec, plan and warnings");
    if (strcmp(kind, "file") == 0 || strcmp(r->pattern, "/v1/jobs/{id}/logs") == 0) add_answer(responses, 206, "application/octet-stream", NULL, "a part of it");
    if (r->scope == SCOPE_NONE) (void)cJSON_AddArrayToObject(o, "security");
    add_answer(responses, 400, "application/problem+json", ref("Problem"), "the request makes no sense");     /* "default" would hide a wrong status */
    static const int others[] = { 401, 403, 404, 409, 412, 413, 415, 416, 422, 428, 429, 500, 501, 503, 507 };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (others[i] == 428 && strcmp(r->method, "PATCH") != 0) continue;
        if (others[i] == 412 && strcmp(r->method, "PATCH") != 0) continue;
        add_answer(responses, others[i], "application/problem+json", ref("Problem"), "see the problem document");
    }
    add_answer(responses, 304, NULL, NULL, "not changed");
    return o;
}

static const char schemas[] =
    "{\"Problem\":{\"type\":\"object\",\"required\":[\"type\",\"title\",\"status\",\"detail\",\"instance\"],\"properties\":{\"type\":{\"type\":\"string\"},\"title\":{\"type\":\"string\"},"
    "\"status\":{\"type\":\"integer\"},\"detail\":{\"type\":\"string\"},\"instance\":{\"type\":\"string\"},\"errors\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
    "\"required\":[\"pointer\",\"code\",\"message\"],\"properties\":{\"pointer\":{\"type\":\"string\"},\"code\":{\"type\":\"string\"},\"message\":{\"type\":\"string\"}}}}}},"
    "\"List\":{\"type\":\"object\",\"required\":[\"items\",\"next\",\"server_time\"],\"properties\":{\"items\":{\"type\":\"array\"},\"next\":{\"type\":[\"string\",\"null\"]},"
    "\"server_time\":{\"type\":\"string\"}}},"
    "\"Job\":{\"type\":\"object\",\"required\":[\"id\",\"name\",\"state\",\"desired\",\"version\",\"attempt\",\"priority\",\"ranks\"],\"properties\":{\"id\":{\"type\":\"string\"},"
    "\"name\":{\"type\":\"string\"},\"state\":{\"enum\":[\"queued\",\"starting\",\"running\",\"stopping\",\"succeeded\",\"failed\",\"cancelled\",\"paused\"]},"
    "\"desired\":{\"enum\":[\"run\",\"pause\",\"requeue\",\"cancel\",\"kill\"]},\"reason\":{\"type\":[\"string\",\"null\"]},\"detail\":{\"type\":[\"string\",\"null\"]},"
    "\"version\":{\"type\":\"integer\"},\"attempt\":{\"type\":\"integer\"},\"restarts\":{\"type\":\"integer\"},\"priority\":{\"type\":\"integer\"},\"ranks\":{\"type\":\"integer\"},"
    "\"step\":{\"type\":\"integer\"},\"max_steps\":{\"type\":\"integer\"}}},"
    "\"Preview\":{\"type\":\"object\",\"required\":[\"documents\",\"rows\",\"tokens\",\"tokens_trained\",\"packing_efficiency\",\"histogram\",\"samples\"],\"properties\":{"
    "\"documents\":{\"type\":\"integer\"},\"documents_dropped\":{\"type\":\"integer\"},\"dropped_too_long\":{\"type\":\"integer\"},\"dropped_untrained\":{\"type\":\"integer\"},"
    "\"rows\":{\"type\":\"integer\"},\"val_rows\":{\"type\":\"integer\"},\"tokens\":{\"type\":\"integer\"},\"tokens_trained\":{\"type\":\"integer\"},"
    "\"longest\":{\"type\":\"integer\"},\"packing_efficiency\":{\"type\":\"number\"},\"histogram\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
    "\"required\":[\"tokens_up_to\",\"documents\"]}},\"samples\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"tokens\",\"trained\",\"parts\"]}}}}}";

cJSON *openapi_document(void)
{
    cJSON *o = cJSON_CreateObject(), *info, *paths, *components, *schema;
    json_add_str(o, "openapi", "3.1.0");
    info = cJSON_AddObjectToObject(o, "info");
    json_add_str(info, "title", "Ringmaster");
    json_add_str(info, "version", RM_VERSION);
    json_add_str(info, "description", "Coordinator of long-context training jobs. Errors are RFC 9457 problem documents.");
    paths = cJSON_AddObjectToObject(o, "paths");
    for (int i = 0; i < n_routes; i++) {
        char path[120], method[10];
        size_t n = 0;
        for (const char *p = routes[i].pattern; *p; p++) if (*p != '*') path[n++] = *p;
        path[n] = '\0';
        for (n = 0; routes[i].method[n]; n++) method[n] = (char)(routes[i].method[n] | 0x20);
        method[n] = '\0';
        cJSON *at = json_get(paths, path);
        if (at == NULL) at = cJSON_AddObjectToObject(paths, path);
        (void)cJSON_AddItemToObject(at, method, operation(&routes[i]));
    }
    components = cJSON_AddObjectToObject(o, "components");
    schema = cJSON_Parse(schemas);
    (void)cJSON_AddItemToObject(schema, "Spec", spec_schema());
    (void)cJSON_AddItemToObject(components, "schemas", schema);
    cJSON *sec = cJSON_AddObjectToObject(components, "securitySchemes"), *bearer = cJSON_AddObjectToObject(sec, "bearer");
    json_add_str(bearer, "type", "http");
    json_add_str(bearer, "scheme", "bearer");
    cJSON *need = cJSON_AddArrayToObject(o, "security"), *one = cJSON_CreateObject();
    (void)cJSON_AddArrayToObject(one, "bearer");
    (void)cJSON_AddItemToArray(need, one);
    return o;
}
