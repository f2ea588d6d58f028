/* What runs between fork and the command: the supervisor of its tree, and the child that becomes it. */
#ifndef CHILD_H
#define CHILD_H

#include "request.h"

struct streams {
    int in, out, err, state; /* -1: none */
};

/* In the forked child; every descriptor but the streams is closed. Never return. */
_Noreturn void child_run_command(const struct request *request, struct streams streams);
_Noreturn void child_run_file_operation(const struct request *request, struct streams streams);

#endif
