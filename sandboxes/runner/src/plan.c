#include "plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_PLAN = 78, TEXT_LIMIT = 512 << 10, WORD_LIMIT = 4096 };

_Noreturn void plan_fail(const char *what, const char *path) {
    int number = errno;
    dprintf(2, "%s%s%s: %s\n", what, path ? " " : "", path ? path : "", strerror(number));
    _exit(EXIT_PLAN);
}

static _Noreturn void misunderstood(const char *word) {
    errno = EINVAL;
    plan_fail("the plan of the box at", word);
}

static char *next(char ***at) {
    if (!**at) misunderstood("its end");
    return *(*at)++;
}

static unsigned long next_number(char ***at) {
    const char *text = next(at);
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (!*text || *end) misunderstood(text);
    return number;
}

static void add_step(struct plan *plan, const char *word, char ***at, int operands) {
    if (plan->step_count == STEP_LIMIT) misunderstood(word);
    struct step *step = &plan->steps[plan->step_count++];
    step->word = word;
    if (operands > 0) step->first = next(at);
    if (operands > 1) step->second = next(at);
}

static bool parse_root_step(struct plan *plan, const char *word, char ***at) {
    static const struct { const char *word; int operands; } steps[] = {
        {"bind", 2}, {"link", 2}, {"folder", 2}, {"file", 2}, {"mode", 2}, {"own", 1}, {"system", 0},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (strcmp(word, steps[i].word)) continue;
        add_step(plan, word, at, steps[i].operands);
        return true;
    }
    return false;
}

static void parse_cgroup(struct plan *plan, char ***at) {
    if (plan->cgroup_count == sizeof plan->cgroups / sizeof *plan->cgroups) misunderstood("cgroup");
    plan->cgroups[plan->cgroup_count++] = next(at);
}

static void parse_rlimit(struct plan *plan, char ***at) {
    if (plan->rlimit_count == sizeof plan->rlimits / sizeof *plan->rlimits) misunderstood("rlimit");
    plan->rlimits[plan->rlimit_count].number = (int)next_number(at);
    plan->rlimits[plan->rlimit_count++].value = next_number(at);
}

static bool parse_setting(struct plan *plan, const char *word, char ***at) {
    if (!strcmp(word, "owner")) plan->owner = (pid_t)next_number(at);
    else if (!strcmp(word, "cgroup")) parse_cgroup(plan, at);
    else if (!strcmp(word, "rlimit")) parse_rlimit(plan, at);
    else if (!strcmp(word, "disk")) plan->disk = next_number(at);
    else if (!strcmp(word, "image")) plan->image = next(at);
    else if (!strcmp(word, "seccomp")) plan->seccomp = (int)next_number(at);
    else if (!strcmp(word, "name")) plan->name = next(at);
    else if (!strcmp(word, "ids")) {
        plan->first_id = next_number(at);
        plan->id_count = next_number(at);
    } else return false;
    return true;
}

static void parse(struct plan *plan, char **words) {
    memset(plan, 0, sizeof *plan);
    plan->seccomp = -1;
    while (*words) {
        const char *word = *words++;
        if (!strcmp(word, "exec") && *words) {
            plan->exec = words;
            return;
        }
        if (!parse_setting(plan, word, &words) && !parse_root_step(plan, word, &words)) misunderstood(word);
    }
}

static char **split(char *text, size_t length) {
    char **words = calloc(WORD_LIMIT + 1, sizeof *words);
    size_t count = 0;
    for (char *at = text; words && at < text + length; at += strlen(at) + 1) {
        if (count == WORD_LIMIT) misunderstood(at);
        words[count++] = at;
    }
    return words;
}

void plan_read(struct plan *plan, int file) {
    char *text = calloc(1, TEXT_LIMIT + 1);
    ssize_t length = text ? pread(file, text, TEXT_LIMIT, 0) : -1;
    char **words = length > 0 ? split(text, (size_t)length) : NULL;
    if (!words || length == TEXT_LIMIT) misunderstood("its start");
    close(file);
    parse(plan, words);
}
