/* paths.h - which files a job may name: those under the configured roots, with every symbolic link followed. */
#ifndef RM_DAEMON_PATHS_H
#define RM_DAEMON_PATHS_H

#include "api/spec.h"

/* Makes every path in s absolute and resolved; a relative one starts at the first root. One problem per path that lies elsewhere. */
void paths_check(struct spec *s, const struct strlist *roots, struct problems *p);
/* path resolved as far as it exists, malloc; NULL if it leaves the roots (or is malformed). */
char *path_under(const char *path, const struct strlist *roots);

#endif
