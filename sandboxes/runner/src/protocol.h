/* The words that the runner and its client exchange. `sandboxes/frames.py` holds the same numbers.

   A frame is `u32 length, u32 id, u8 kind` and `length` bytes, all little-endian. The client chooses ids; an id is free
   again after its DONE.

   client to runner
     RUN        start a command; the payload is a list of fields, each `u8 tag, u32 length, bytes`
                  a  an argument (repeated)          e  "NAME=value" of its environment (repeated)
                  d  its working folder              u  its user: "name", "uid" or "uid:gid"; absent: the runner's
                  f  u32 of RUN_* flags              t  u32 time limit in milliseconds, 0 for none
                  h  u32 bytes of head to keep       l  u32 bytes of tail to keep, for each stream
     INPUT      bytes for its standard input, never more than the client has credit for (INPUT_WINDOW at first)
     INPUT_END  its standard input ends here
     KILL       kill it with everything that it started; its DONE follows
     PEEK       `u32 id` of another command: answer with what it has written so far
     KILL_ALL   kill every process of the box but this one; DONE carries how many there were
     CREDIT     `u32` more bytes that may be sent as OUT of a streamed command
     CORES      `u32 count, u32 first`: from now on keep to that many of the cores, which are counted in a ring; no answer
     FILTER     a seccomp program for all that the box runs from now on; no answer, nothing where the kernel takes none

   runner to client
     HELLO      `u32 version, u32 pid, u32 uid` (id 0), once, when it is ready
     OUT, ERR   bytes of a stream; of a captured command they come after it ended, head and tail joined
     CREDIT     `u32` more bytes of INPUT may be sent
     DONE       the end of an id: struct done

   Time limits, credit and limits of size keep the memory of both sides bounded, whoever stops reading. */
#ifndef PROTOCOL_H
#define PROTOCOL_H

#include <stdint.h>

enum {
    PROTOCOL_VERSION = 3,
    FRAME_HEADER = 9,
    FRAME_LIMIT = 4 << 20,
    CHUNK = 64 << 10,
    INPUT_WINDOW = 256 << 10,
    CAPTURE_LIMIT = 64 << 20,
    STATE_FD = 9,
    STATE_LIMIT = 512 << 10,
};

enum kind { RUN = 1, INPUT, INPUT_END, KILL, PEEK, KILL_ALL, CREDIT, CORES, FILTER, HELLO = 16, OUT, ERR, DONE };

enum {
    RUN_SHELL = 1,   /* the first argument is shell text, the others its $1, …: bash where there is one, else sh */
    RUN_FILE = 2,    /* a file operation of the runner itself (files.c) */
    RUN_MERGE = 4,   /* standard error goes where standard output goes */
    RUN_STREAM = 8,  /* OUT as it comes, by credit, instead of captured */
    RUN_INPUT = 16,  /* INPUT follows; otherwise its standard input is empty */
    RUN_STATE = 32,  /* with RUN_MERGE: what it writes to descriptor STATE_FD is captured as ERR */
};

enum { DONE_TIMED_OUT = 1, DONE_RUNNING = 2, DONE_UNKNOWN = 4 };

struct done {
    int32_t status; /* exit code, or 128 + signal; of a file operation its errno; of KILL_ALL the count */
    uint32_t flags;
    uint64_t microseconds;
    struct {
        uint64_t omitted; /* bytes cut out of the middle */
        uint64_t cut_at;  /* where in the bytes that were sent */
    } stream[2];
} __attribute__((packed));

#endif
