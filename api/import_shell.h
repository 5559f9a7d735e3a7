/* import_shell.h - enough of a shell's reading to find the commands in a training script. Private to api/import*.c. */
#ifndef RM_API_IMPORT_SHELL_H
#define RM_API_IMPORT_SHELL_H

#include <stddef.h>

#include "api/error.h"

struct command { char **word; int n; };         /* NULL-terminated words, assignments in front included */
struct script { struct command *v; int n; };

/* Cuts text into simple commands: quotes, escapes, continuations, comments, ; && || | & and newlines, redirections (dropped). Variables set
 * earlier in the text are put in ($NAME, ${NAME}, ${NAME:-default}); others stay as written, as do $(…) and `…`. E_LIMIT, E_INVALID (open quote). */
int script_read(struct script *s, const char *text, size_t len, struct error *err);
void script_release(struct script *s);

#endif
