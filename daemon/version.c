extern const char ringmaster_version[]; const char ringmaster_version[] = RM_VERSION;
