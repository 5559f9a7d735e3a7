/* jobs.c - verbs that talk to the daemon. */
#include "api/cli/cli.h"

static int not_yet(struct cli *c) { return cli_complain(c, CLI_FAILED, "this verb is not built yet"); }
int verb_submit(struct cli *c) { return not_yet(c); }
int verb_list(struct cli *c) { return not_yet(c); }
int verb_show(struct cli *c) { return not_yet(c); }
int verb_logs(struct cli *c) { return not_yet(c); }
int verb_watch(struct cli *c) { return not_yet(c); }
int verb_action(struct cli *c) { return not_yet(c); }
int verb_top(struct cli *c) { return not_yet(c); }
int verb_monitor(struct cli *c) { return not_yet(c); }
