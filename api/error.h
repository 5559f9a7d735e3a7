/* error.h - status codes and the one message that explains a failure.
 *
 * Functions that can fail return an enum status and take `struct error *err` at module borders. The message is recorded
 * once, where the cause is known; callers pass the code up and may put context in front with error_prefix(). Only main(),
 * a request handler or the step loop prints it. err may be NULL when the caller wants the code alone. */
#ifndef RM_API_ERROR_H
#define RM_API_ERROR_H

#ifdef __cplusplus
extern "C" {            /* the CUDA files are C++ */
#endif

enum status {
    OK = 0,
    E_INVALID,          /* input refused: spec, model file, data, request */
    E_UNSUPPORTED,      /* understood, but not something this build or machine can do */
    E_NOTFOUND,
    E_IO,               /* the operating system refused; text holds strerror */
    E_DISK_FULL,
    E_NOMEM,            /* a large or device allocation failed */
    E_LIMIT,            /* a bound of ours was exceeded */
    E_TIMEOUT,
    E_PEER,             /* another rank died or went silent */
    E_STOPPED,          /* asked to stop; not a failure */
    E_CONFLICT,
    E_CUDA,
    E_NCCL,
    E_INTERNAL,
    STATUS_COUNT
};

struct error {
    enum status code;
    char text[1000];    /* one line, no trailing newline, valid UTF-8 */
};

/* Records code and a printf-style text; returns code, so that `return error_set(…)` reads well. */
int error_set(struct error *err, enum status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "text: " in front of the recorded message; returns the recorded code. */
int error_prefix(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Stable lower-case name of a code ("invalid", "disk_full", …) for JSON and exit records. */
const char *status_name(enum status code);
/* E_DISK_FULL for ENOSPC/EDQUOT, E_NOMEM for ENOMEM, E_NOTFOUND for ENOENT, else E_IO. */
enum status status_of_errno(int e);

/* Small host allocations that fail end the process with a message; they never return NULL. Free with free(). */
void *xmalloc(unsigned long bytes);
void *xcalloc(unsigned long n, unsigned long bytes);
void *xrealloc(void *p, unsigned long bytes);
char *xstrdup(const char *s);
char *xstrndup(const char *s, unsigned long n);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif
#endif
