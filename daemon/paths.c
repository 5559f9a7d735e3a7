#include "daemon/paths.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool beneath(const char *path, const struct strlist *roots)
{
    for (int i = 0; i < roots->n; i++) {
        size_t n = strlen(roots->v[i]);
        if (n == 1) return true;            /* the root is / */
        if (strncmp(path, roots->v[i], n) == 0 && (path[n] == '/' || path[n] == '\0')) return true;
    }
    return false;
}

char *path_under(const char *path, const struct strlist *roots)
{
    if (roots->n == 0 || *path == '\0' || strlen(path) >= PATH_MAX / 2) return NULL;
    char *full = path[0] == '/' ? xstrdup(path) : xasprintf("%s/%s", roots->v[0], path), real[PATH_MAX], *rest = xstrdup("");
    char *out = NULL;
    /* What exists is resolved; what does not yet may hold no "..", so the answer cannot change meaning later. */
    while (realpath(full, real) == NULL) {
        if (errno != ENOENT) goto out;
        char *slash = strrchr(full, '/'), *name = slash + 1;
        if (slash == NULL || strcmp(name, "..") == 0) goto out;
        if (*name && strcmp(name, ".") != 0) {
            char *longer = xasprintf("/%s%s", name, rest);
            free(rest);
            rest = longer;
        }
        if (slash == full) slash[1] = '\0';
        else *slash = '\0';
    }
    out = xasprintf("%s%s", strcmp(real, "/") == 0 && *rest ? "" : real, rest);
    if (!beneath(out, roots)) { free(out); out = NULL; }
out:
    free(full);
    free(rest);
    return out;
}

/* "data.jsonl#2000" takes samples: the path is what stands before. */
static size_t sample_suffix(const char *v)
{
    const char *hash = strrchr(v, '#');
    if (hash == NULL || hash == v || hash[1] == '\0' || strspn(hash + 1, "0123456789") != strlen(hash + 1)) return 0;
    return strlen(hash);
}

static void check(char **v, const char *pointer, const struct strlist *roots, bool dataset, struct problems *p)
{
    size_t n = dataset ? sample_suffix(*v) : 0, len = strlen(*v) - n;
    char *path = xstrndup(*v, len), *real = path_under(path, roots);
    if (real) {
        char *full = xasprintf("%s%s", real, *v + len);
        free(*v);
        *v = full;
    } else if (roots->n == 0) problems_add(p, pointer, "path", "no path is allowed: start ringmasterd with --allow-root DIR");
    else problems_add(p, pointer, "path", "%.300s is outside the allowed folders (the first is %.200s)", path, roots->v[0]);
    free(real);
    free(path);
}

void paths_check(struct spec *s, const struct strlist *roots, struct problems *p)
{
    for (int i = 0; i < n_spec_fields; i++) {
        const struct field *f = &spec_fields[i];
        void *m = (char *)s + f->offset;
        char pointer[200];
        if (f->type == FIELD_PATH && *(char **)m) {
            (void)snprintf(pointer, sizeof pointer, "/%s", f->name);
            check(m, pointer, roots, false, p);
        }
        for (int k = 0; f->type == FIELD_PATHS && k < ((struct strlist *)m)->n; k++) {
            (void)snprintf(pointer, sizeof pointer, "/%s/%d", f->name, k);
            check(&((struct strlist *)m)->v[k], pointer, roots, true, p);
        }
    }
}
