/* The processes below this one, also those that left their session: as a subreaper (or PID 1) it inherits every orphan. */
#ifndef TREE_H
#define TREE_H

/* Send SIGKILL to all descendants; returns how many there were, or -1 without a readable /proc. */
int tree_kill(void);

/* Kill and reap until no descendant is left, for at most `milliseconds`. `reaped` is told of each; may be NULL. */
void tree_end(int milliseconds, void (*reaped)(int pid, int wait_status));

#endif
