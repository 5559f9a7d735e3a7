/* main.c - ringmasterd. */
#include "api/file.h"
#include "daemon/coordinator.h"

int main(int argc, char **argv)
{
    open_standard_fds();
    return coordinator_main(argc, argv);
}
