/* main.c - ringmasterd. */
#include "daemon/coordinator.h"

int main(int argc, char **argv) { return coordinator_main(argc, argv); }
