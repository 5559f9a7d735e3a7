/* coordinator.h - the daemon's whole life, for main.c. */
#ifndef RM_DAEMON_COORDINATOR_H
#define RM_DAEMON_COORDINATOR_H

int coordinator_main(int argc, char **argv);

#endif
