#define _GNU_SOURCE
#include "user.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GROUP_LIMIT = 64 };

static bool is_number(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!isdigit((unsigned char)text[i])) return false;
    return length > 0;
}

/* An id above 32 bits would be taken for another one, and -1 for "as it is". */
static bool read_id(const char *text, size_t length, uint32_t *id) {
    unsigned long long number = 0;
    if (!is_number(text, length)) return false;
    for (size_t i = 0; i < length && number <= UINT32_MAX; i++) number = number * 10 + (unsigned)(text[i] - '0');
    *id = (uint32_t)number;
    return number < UINT32_MAX;
}

/* Whatever the box's list of users says of it, which may be missing, or written by the agent. */
static bool is_root(const char *name, size_t length) { return length == 4 && !memcmp(name, "root", 4); }

/* Reads the file itself: getpwnam would ask a name service that the agent might run. */
static bool find_account(const char *name, size_t length, struct identity *into) {
    uid_t uid = 0;
    bool number = is_root(name, length) || read_id(name, length, &uid);
    FILE *file = fopen("/etc/passwd", "re");
    struct passwd *entry;
    bool found = false;
    while (file && !found && (entry = fgetpwent(file))) {
        bool same_name = strlen(entry->pw_name) == length && !memcmp(entry->pw_name, name, length);
        if (!(number ? entry->pw_uid == uid : same_name)) continue;
        found = true;
        into->uid = entry->pw_uid;
        into->gid = entry->pw_gid;
        snprintf(into->name, sizeof into->name, "%s", entry->pw_name);
        snprintf(into->home, sizeof into->home, "%s", entry->pw_dir);
    }
    if (file) fclose(file);
    if (!found && number) into->uid = into->gid = uid;
    return found || number;
}

static bool find_group(const char *name, gid_t *gid) {
    if (read_id(name, strlen(name), gid)) return true;
    FILE *file = fopen("/etc/group", "re");
    struct group *entry;
    bool found = false;
    while (file && !found && (entry = fgetgrent(file)))
        if ((found = !strcmp(entry->gr_name, name))) *gid = entry->gr_gid;
    if (file) fclose(file);
    return found;
}

static int groups_of(const struct identity *identity, gid_t *groups) {
    int count = 0;
    groups[count++] = identity->gid;
    FILE *file = identity->name[0] ? fopen("/etc/group", "re") : NULL;
    struct group *entry;
    while (file && (entry = fgetgrent(file)))
        for (char **member = entry->gr_mem; member && *member && count < GROUP_LIMIT; member++)
            if (!strcmp(*member, identity->name)) groups[count++] = entry->gr_gid;
    if (file) fclose(file);
    return count;
}

bool user_find(const char *user, struct identity *identity, char *problem, size_t problem_size) {
    memset(identity, 0, sizeof *identity);
    const char *colon = strchr(user, ':');
    size_t name_length = colon ? (size_t)(colon - user) : strlen(user);
    if (!find_account(user, name_length, identity)) {
        snprintf(problem, problem_size, "unable to find user %s: no matching entries in passwd file", user);
        return false;
    }
    if (colon && !find_group(colon + 1, &identity->gid)) {
        snprintf(problem, problem_size, "unable to find group %s: no matching entries in group file", colon + 1);
        return false;
    }
    return true;
}

static bool is_already(const struct identity *identity) {
    return identity->uid && identity->uid == getuid() && identity->gid == getgid();
}

bool user_become(const char *user, struct identity *identity, char *problem, size_t problem_size) {
    if (!user_find(user, identity, problem, problem_size)) return false;
    if (is_already(identity)) return true;
    gid_t groups[GROUP_LIMIT];
    int count = groups_of(identity, groups);
    if (!setgroups((size_t)count, groups) && !setresgid(identity->gid, identity->gid, identity->gid) &&
        !setresuid(identity->uid, identity->uid, identity->uid))
        return true;
    snprintf(problem, problem_size, "cannot become user %s: %s", user, strerror(errno));
    return false;
}
