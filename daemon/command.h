/* command.h - runs a program beside the loop: no shell, a deadline, bounded output; the answer comes through a call. */
#ifndef RM_DAEMON_COMMAND_H
#define RM_DAEMON_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/loop.h"

enum { COMMAND_OUT_MAX = 4 << 20, COMMAND_ERR_MAX = 8192 };

struct command_end {
    int64_t code; int signal;       /* code 127: it could not be started, err says why */
    bool late, too_long;            /* killed at its deadline; wrote more than COMMAND_OUT_MAX */
    const char *out; size_t n_out;  /* stdout, NUL-terminated, as it came: not checked for anything */
    const char *err;                /* the beginning of stderr as one valid UTF-8 text without a last newline */
};
typedef void command_done(void *arg, const struct command_end *e);

struct command;
/* input: a descriptor the program reads as its stdin, borrowed until the call returns; -1: nothing. argv[0] is the program (a path, or looked for in PATH); env NULL: ours. done is called once, always later, never inside this call. */
struct command *command_run(uv_loop_t *loop, char *const argv[], char *const env[], int input, int64_t limit_ms, command_done *done, void *arg);
/* Nobody waits for it any more: done is not called. kill: it is ended too, else it finishes by itself. */
void command_forget(struct command *c, bool kill);
/* Our environment for another program: without what is the daemon's alone, and without what begins like one of `also` (NULL-terminated). *n: its
 * length; `room` more fit behind. The caller frees the list, not its strings. */
char **command_env(const char *const also[], size_t room, size_t *n);
/* Path of a program in PATH; the caller frees, NULL if there is none. */
char *command_find(const char *name);

#endif
