/* vectors.c - every rendering that Python's Jinja2 made of the real templates in shared data, and its refusals. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/data/template.h"

static int failures, checked;

static void one_line(const struct chat_template *t, const char *folder, const char *line, size_t len)
{
    struct pool pool = { 0 };
    struct value v;
    struct error err = { 0 };
    struct rendered out = { 0 };
    if (value_parse(&v, &pool, line, len, &json_limits_file, &err) != OK) { (void)fprintf(stderr, "%s: %s\n", folder, err.text); failures++; return; }
    struct value want = value_get(v, "text"), fails = value_get(v, "error");
    int rc = template_render(t, value_get(v, "messages"), value_get(v, "tools"), value_get(v, "add_generation_prompt").tag, value_get(v, "context"), &out, &err);
    checked++;
    const char *words = fails.type == V_STR && strncmp(fails.s.p, "TemplateError: ", 15) == 0 ? fails.s.p + 15 : NULL;
    bool ok = fails.type == V_STR ? rc != OK && (!words || strstr(err.text, words))
                                  : rc == OK && out.text.n == want.s.n && memcmp(out.text.p, want.s.p, want.s.n) == 0;
    if (!ok) {
        failures++;
        size_t at = 0;
        while (rc == OK && want.type == V_STR && at < out.text.n && at < want.s.n && out.text.p[at] == want.s.p[at]) at++;
        (void)fprintf(stderr, "%s %s: %s\n  want …%.80s\n  have …%.80s\n", folder, value_get(v, "id").s.p, rc == OK ? "" : err.text,
                      want.type == V_STR ? want.s.p + at : fails.s.p, rc == OK ? out.text.p + at : "");
    }
    rendered_release(&out);
    pool_release(&pool);
}

int main(void)
{
    const char *shared = getenv("RM_SHARED");
    char *root = xasprintf("%s/data/chat-templates", shared ? shared : ".");
    DIR *dir = opendir(root);
    if (dir == NULL) {
        (void)fprintf(stderr, "skipped: no %s\n", root);
        free(root);
        return 77;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char *path = xasprintf("%s/%s/chat_template.jinja", root, e->d_name), *lines = xasprintf("%s/%s/vectors.jsonl", root, e->d_name), *text;
        struct chat_template *t;
        struct error err = { 0 };
        size_t len;
        if (e->d_name[0] != '.' && access(path, R_OK) == 0 && file_read(lines, 1 << 26, &text, &len, NULL) == OK) {
            if (template_open_file(&t, path, &err) != OK) { (void)fprintf(stderr, "%s: %s\n", path, err.text); failures++; }
            else {
                for (char *p = text; *p;) {
                    size_t n = strcspn(p, "\n");
                    if (n) one_line(t, e->d_name, p, n);
                    p += n + (p[n] == '\n');
                }
                template_free(t);
            }
            free(text);
        } else if (e->d_name[0] != '.' && access(lines, R_OK) == 0) (void)printf("%s: no template here (its licence keeps it out): left out\n", e->d_name);
        free(path);
        free(lines);
    }
    (void)closedir(dir);
    free(root);
    (void)printf("%d renderings, %d wrong\n", checked, failures);
    return failures != 0 || checked == 0;
}
