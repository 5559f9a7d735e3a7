#include "api/cli/cli.h"
#include "api/file.h"

int main(int argc, char **argv)
{
    open_standard_fds();
    return cli_main(argc, argv);
}
