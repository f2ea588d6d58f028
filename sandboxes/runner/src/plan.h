/* How to make a box of Linux namespaces. `runner plan FD` reads it from a file, since arguments could be read in the box;
   then it makes the box and serves in it as its PID 1.

   A plan is a list of texts, each ended by a NUL: words with their operands, in order.

     owner PID               end with that process, however it ends
     cgroup FOLDER           run in that control group; the folder is removed at the end
     rlimit NUMBER VALUE     setrlimit
     ids OUTSIDE COUNT       ids 0 … COUNT-1 of the box are OUTSIDE … outside (needs root); without this step the box has
                             one id, INSIDE_ID, which is the user who starts it
     disk BYTES              the size of all that can be written
     image FOLDER            the root is this folder, under a layer that vanishes; without it the root is empty
     seccomp FD              a filter for all that runs in the box
     name HOSTNAME
     exec ARGV...            last: make no box, only guard this command, which makes its own

   and for the root, each path absolute in the box:

     bind SOURCE PATH        a file or folder of the host, read-only
     link TARGET PATH        a symbolic link
     folder MODE PATH        octal mode
     file TEXT PATH
     mode MODE PATH          octal, of what a step before this one made
     own PATH                it belongs to INSIDE_ID, the user of the box
     system                  /proc and /dev, closed as far as a container's are */
#ifndef PLAN_H
#define PLAN_H

#include <stdbool.h>
#include <sys/types.h>

enum { INSIDE_ID = 1000, STEP_LIMIT = 512 };

struct step {
    const char *word, *first, *second;
};

struct plan {
    struct step steps[STEP_LIMIT]; /* those for the root */
    int step_count;
    const char *cgroups[8];
    int cgroup_count;
    struct { int number; unsigned long value; } rlimits[16];
    int rlimit_count;
    pid_t owner;
    unsigned long first_id, id_count; /* id_count 0: a single id */
    unsigned long disk;
    const char *image, *name;
    int seccomp;
    char **exec;
};

/* Read the plan and close the file. What is wrong with it is said on standard error and ends the program. */
void plan_read(struct plan *plan, int file);

/* Ends the program with "what: reason" on standard error. */
_Noreturn void plan_fail(const char *what, const char *path);

#endif
