/* verbs.h - what ringmaster-worker does beside training: one row in main.c's table and one function here per verb. */
#ifndef RM_WORKER_VERBS_H
#define RM_WORKER_VERBS_H

struct verb {
    const char *name, *args, *help;
    int (*run)(int argc, char **argv);      /* argv[0] is the verb; returns the exit code */
};

int verb_plan(int argc, char **argv);
int verb_devices(int argc, char **argv);
int verb_cluster(int argc, char **argv);         /* worker/parallel/cluster_verb.c */
int verb_merge(int argc, char **argv);
int verb_sample(int argc, char **argv);
int verb_tokenize(int argc, char **argv);        /* worker/data/tokenize.c */
int verb_render(int argc, char **argv);
int verb_check(int argc, char **argv);
int verb_dataset(int argc, char **argv);

#endif
