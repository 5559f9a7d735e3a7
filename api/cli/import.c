/* import.c - `ringmaster import`: prints the spec another tool's command becomes, and what happened to every flag. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/cli.h"
#include "api/file.h"
#include "api/import.h"

int verb_import(struct cli *c)
{
    cJSON *r = NULL;
    struct error err = { 0 };
    char *text = NULL;
    size_t len = 0;
    int rc = OK;
    bool swift = strcmp(c->args[0], "swift") == 0;
    if (!swift && strcmp(c->args[0], "llamafactory") != 0) return cli_complain(c, CLI_USAGE, "import knows swift and llamafactory, not %s", c->args[0]);
    if (swift && c->n_args == 1) {
        if (c->n_rest == 0) return cli_complain(c, CLI_USAGE, "expected -- swift sft …, or a script's file name");
        rc = c->n_rest == 1 ? import_swift(&r, c->rest[0], strlen(c->rest[0]), &err) : import_swift_words(&r, c->n_rest, c->rest, &err);
    } else if (c->n_args != 2) return cli_complain(c, CLI_USAGE, "expected FILE.yaml");
    else {
        if (strcmp(c->args[1], "-") == 0) {
            text = xmalloc(IMPORT_MAX_BYTES + 1);
            len = fread(text, 1, IMPORT_MAX_BYTES + 1, stdin);      /* one byte too many is refused by the importer */
        } else rc = file_read(c->args[1], IMPORT_MAX_BYTES, &text, &len, &err);
        if (rc == OK) rc = swift ? import_swift(&r, text, len, &err) : import_llamafactory(&r, text, len, &err);
        free(text);
    }
    if (rc != OK) return cli_complain(c, CLI_USAGE, "%s", err.text);
    bool supported = json_bool(r, "supported", false);
    if (c->json) {
        json_print(r);
        return supported ? CLI_OK : CLI_FAILED;
    }
    char *spec = cJSON_Print(json_get(r, "spec"));
    (void)printf("%s\n", spec);
    cJSON_free(spec);
    (void)fflush(stdout);
    cli_printable(r);
    const cJSON *flags = json_get(r, "flags"), *defaults = json_get(r, "defaults"), *problems = json_get(r, "problems");
    for (const cJSON *f = flags->child; f; f = f->next) {
        const char *why = json_str(f, "why"), *field = json_str(f, "field");
        (void)fprintf(stderr, "%-11s %s %s%s%s%s%s\n", json_str(f, "status"), json_str(f, "flag"), json_str(f, "value"), field && strcmp(json_str(f, "status"), "translated") == 0 ? " -> " : "",
                      field && strcmp(json_str(f, "status"), "translated") == 0 ? field : "", *why ? ": " : "", why);
    }
    for (const cJSON *d = defaults->child; d; d = d->next) {
        char *value = json_line(json_get(d, "value"));
        (void)fprintf(stderr, "default     %s %s: %s\n", json_str(d, "field"), value, json_str(d, "why"));
        free(value);
    }
    for (const cJSON *p = problems->child; p; p = p->next) (void)fprintf(stderr, "problem     %s: %s\n", json_str(p, "pointer"), json_str(p, "message"));
    cJSON_Delete(r);
    return supported ? CLI_OK : CLI_FAILED;
}
