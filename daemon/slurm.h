/* slurm.h - the words spoken with Slurm's programs: what sbatch is given, and what squeue, sacct and sbatch may answer.
 *
 * Nothing here runs anything. Answers are text from outside: bounded, taken apart strictly, and what does not fit is counted, never guessed at. */
#ifndef RM_DAEMON_SLURM_H
#define RM_DAEMON_SLURM_H

#include "api/spec.h"

enum slurm_phase { SLURM_PENDING, SLURM_ALIVE, SLURM_ENDED, SLURM_UNKNOWN };
struct slurm_state {
    const char *name;               /* as squeue and sacct write it */
    enum slurm_phase phase;
    const char *reason;             /* ENDED: ours, for an attempt that left no exit record */
    bool outside;                   /* somebody else ended it: this reason stands above what the ranks' end looked like */
};
const struct slurm_state *slurm_state_find(const char *name, size_t n);     /* NULL: a word we do not know */

struct slurm_line { int64_t id; const struct slurm_state *state; char comment[80], why[80]; };

#define SLURM_QUEUE_FORMAT "--format=%i|%T|%k|%r"
/* Answer of squeue: calls line for each line that is one, returns how many are none. A state's word we do not know is that job's alone: state
 * "unknown" of SLURM_UNKNOWN, why: the word. */
int slurm_parse_queue(const char *out, size_t n, void (*line)(void *arg, const struct slurm_line *l), void *arg);
#define SLURM_ACCT_FORMAT "--format=JobIDRaw,JobName,State,ExitCode"
/* Answer of sacct --parsable2 about job id: its state, if it is there under this name; else NULL. */
const struct slurm_state *slurm_parse_acct(const char *out, size_t n, int64_t id, const char *name, char exit_code[16]);
/* Answer of sbatch --parsable: "123" or "123;cluster". */
bool slurm_parse_id(const char *out, size_t n, int64_t *id);
/* True if this complaint of sbatch means that Slurm could not be asked, not that it refused. */
bool slurm_unreachable(const char *complaint);

struct slurm_ask { const char *dir, *name, *comment, *nonce, *keeper, *worker, *job; int64_t attempt; };
/* The batch script; every value in it is quoted. The caller frees. */
char *slurm_script(const struct slurm_ask *q);
/* argv for sbatch, NULL-terminated; free with slurm_args_free. */
char **slurm_args(const struct slurm_ask *q, const struct spec *s, const char *sbatch, const char *script);
void slurm_args_free(char **argv);

#endif
