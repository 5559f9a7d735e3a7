/* specs.c - the spec a command line describes: a file, then single fields over it. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/file.h"

static void absolute_item(cJSON *v, const char *folder)
{
    if (!cJSON_IsString(v) || v->valuestring[0] == '/' || v->valuestring[0] == '\0') return;
    const char *p = v->valuestring;
    char *full = NULL;
    const char *home = getenv("HOME");
    if (strncmp(p, "~/", 2) == 0 && home) full = xasprintf("%s%s", home, p + 1);
    else {
        size_t len = strlen(folder);        /* folder is a real path: its .. can be taken by letter */
        for (;;) {
            if (strncmp(p, "./", 2) == 0) p += 2;
            else if (strncmp(p, "../", 3) == 0) {
                p += 3;
                while (len > 0 && folder[--len] != '/') { }
            } else break;
        }
        if (len == 1) len = 0;
        full = xasprintf("%.*s/%s", (int)len, folder, p);
    }
    (void)cJSON_SetValuestring(v, full);
    free(full);
}

void cli_absolute_paths(cJSON *spec, const char *folder)
{
    for (cJSON *v = spec ? spec->child : NULL; v; v = v->next) {
        const struct field *f = spec_field(v->string);
        if (f == NULL || (f->type != FIELD_PATH && f->type != FIELD_PATHS)) continue;
        absolute_item(v, folder);
        if (cJSON_IsArray(v))
            for (cJSON *i = v->child; i; i = i->next) absolute_item(i, folder);
    }
}

cJSON *cli_field_value(const struct field *f, const char *text)
{
    cJSON *v = NULL;
    if (f->def && strcmp(f->def, "null") == 0 && strcmp(text, "null") == 0) return cJSON_CreateNull();
    switch (f->type) {
    case FIELD_INT: case FIELD_REAL: case FIELD_OBJECT:
        if (json_parse(&v, text, strlen(text), &json_limits_request, NULL) == OK) return v;
        return cJSON_CreateString(text);        /* the spec's own check says what is wrong with it */
    case FIELD_BOOL:
        if (strcmp(text, "true") == 0 || strcmp(text, "1") == 0) return cJSON_CreateTrue();
        if (strcmp(text, "false") == 0 || strcmp(text, "0") == 0) return cJSON_CreateFalse();
        return cJSON_CreateString(text);
    case FIELD_STRINGS: case FIELD_PATHS:
        if (text[0] == '[' && json_parse(&v, text, strlen(text), &json_limits_request, NULL) == OK) return v;
        return cJSON_CreateString(text);
    default: return cJSON_CreateString(text);
    }
}

/* "-": a spec from a pipe; relative paths in it are relative to the current folder. */
static int from_stdin(cJSON **json, struct error *err)
{
    size_t max = json_limits_request.bytes;
    char *text = xmalloc(max + 1);
    size_t n = fread(text, 1, max + 1, stdin);      /* one byte too many is refused */
    int rc = json_parse(json, text, n, &json_limits_request, err);
    free(text);
    if (rc != OK) (void)error_prefix(err, "standard input");
    return rc;
}

int cli_spec_json(struct cli *c, cJSON **json)
{
    char cwd[PATH_MAX], real[PATH_MAX];
    struct error err;
    *json = NULL;
    if (getcwd(cwd, sizeof cwd) == NULL) return cli_complain(c, CLI_USAGE, "the current folder is gone");
    if (c->n_args > 0) {
        const char *path = c->args[0];
        bool in = strcmp(path, "-") == 0;
        if ((in ? from_stdin(json, &err) : json_parse_file(json, path, &json_limits_request, &err)) != OK) return cli_complain(c, CLI_USAGE, "%s", err.text);
        if (!cJSON_IsObject(*json)) {
            cJSON_Delete(*json);
            *json = NULL;
            return cli_complain(c, CLI_USAGE, "%s: expected a JSON object with the fields of a job", path);
        }
        if (in) cli_absolute_paths(*json, cwd);
        else if (realpath(path, real)) {
            char *slash = strrchr(real, '/');
            slash[slash == real] = '\0';
            cli_absolute_paths(*json, real);
        }
    } else if (c->fields == NULL) return cli_complain(c, CLI_USAGE, "expected SPEC.json, or at least --model, --dataset and --output_dir");
    else *json = cJSON_CreateObject();
    if (c->fields == NULL) return CLI_OK;
    cli_absolute_paths(c->fields, cwd);
    while (c->fields->child) {
        cJSON *v = cJSON_DetachItemViaPointer(c->fields, c->fields->child);
        char *name = xstrdup(v->string);
        cJSON_DeleteItemFromObjectCaseSensitive(*json, name);
        (void)cJSON_AddItemToObject(*json, name, v);
        free(name);
    }
    return CLI_OK;
}
