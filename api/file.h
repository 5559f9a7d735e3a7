/* file.h - reading whole files and replacing them without ever leaving half of one. */
#ifndef RM_API_FILE_H
#define RM_API_FILE_H

#include <stddef.h>

#include "api/error.h"

/* Reads a regular file of at most max bytes. *data gets a NUL after its *len bytes; the caller frees. FIFOs, devices and
 * folders are refused. */
int file_read(const char *path, size_t max, char **data, size_t *len, struct error *err);
/* path names a whole file at every moment, old or new: temp file in the same folder, fsync, rename, fsync of the folder. */
int file_write(const char *path, const void *data, size_t len, struct error *err);
int write_all(int fd, const void *data, size_t len, struct error *err);
int fsync_parent(const char *path, struct error *err);
/* mkdir -p, mode 0755 less umask. */
int make_dirs(const char *path, struct error *err);
/* rm -r beneath path; absent is fine. Never follows a symbolic link. */
int remove_tree(const char *path, struct error *err);
/* Descriptors 0, 1 and 2 that the caller closed become /dev/null; first thing in every main(), or the next file, socket or epoll opened gets
 * the number and is written to as if it were the terminal. */
void open_standard_fds(void);
/* Path of a sibling program ("ringmaster-worker"): next to the running one, else <prefix>/libexec/ringmaster, else PATH's.
 * The caller frees; NULL if there is none. */
char *sibling_program(const char *name);

#endif
