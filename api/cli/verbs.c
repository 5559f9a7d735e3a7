#include "api/cli/verbs.h"

#include <stdio.h>

int cli_main(int argc, char **argv)
{
    (void)argc;
    (void)fprintf(stderr, "%s: no verb is built yet\n", argv[0]);
    return 2;
}
