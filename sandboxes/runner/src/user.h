/* Who a command runs as. */
#ifndef USER_H
#define USER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct identity {
    uid_t uid;
    gid_t gid;
    char name[64], home[256]; /* empty where unknown */
};

/* Look up "name", "uid" or "uid:gid", names in /etc/passwd and /etc/group of the box. On failure `problem` says why. */
bool user_find(const char *user, struct identity *identity, char *problem, size_t problem_size);

/* Look up and become that user, for good. */
bool user_become(const char *user, struct identity *identity, char *problem, size_t problem_size);

#endif
