/* Carries connections made to a port of this box's loopback over standard input and output.
 *
 * It listens on 127.0.0.1 and says on which port, removes its own file, and then writes a frame for whatever happens on
 * a connection and does what frames say that it reads: connection number and length (little-endian, 32 bits each),
 * kind, bytes. It ends when its input ends. Neither side has more than WINDOW bytes of a connection under way that the
 * other has not taken: a CREDIT frame says how many bytes were taken.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 128, CHUNK = 65536, WINDOW = 262144, HEADER = 9 };
enum kind { PORT = 1, OPEN = 2, DATA = 3, END = 4, CLOSE = 5, CREDIT = 6 };

struct connection {
    int fd;             /* -1: free */
    uint32_t number;
    uint32_t credit;    /* bytes that may still be sent to the host */
    int read_ended;     /* the program in the box sends no more */
    int end_wanted;     /* the host sends no more; shut down once all is written */
    int closing;        /* the host is through with it; close once all is written */
    size_t start, end;  /* what of the buffer is still to be written to the program */
    uint8_t *buffer;    /* WINDOW bytes */
};

static struct connection connections[MOST_CONNECTIONS];
static uint32_t last_number;

static void give_up(const char *what) {
    perror(what);
    exit(1);
}

static void put_u32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t get_u32(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void write_all(const uint8_t *bytes, size_t length) {
    while (length > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) exit(0); /* the host is gone */
        bytes += written;
        length -= (size_t)written;
    }
}

static void send_frame(uint32_t number, enum kind kind, const uint8_t *bytes, uint32_t length) {
    uint8_t header[HEADER];
    put_u32(header, number);
    put_u32(header + 4, length);
    header[8] = (uint8_t)kind;
    write_all(header, HEADER);
    write_all(bytes, length);
}

static void send_number(uint32_t number, enum kind kind, uint32_t value) {
    uint8_t bytes[4];
    put_u32(bytes, value);
    send_frame(number, kind, bytes, 4);
}

static struct connection *find(uint32_t number) {
    for (int i = 0; i < MOST_CONNECTIONS; i++)
        if (connections[i].fd >= 0 && connections[i].number == number) return &connections[i];
    return NULL;
}

static void drop(struct connection *c) {
    close(c->fd);
    free(c->buffer);
    c->fd = -1;
    c->buffer = NULL;
}

static void accept_one(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    for (int i = 0; i < MOST_CONNECTIONS; i++) {
        struct connection *c = &connections[i];
        if (c->fd >= 0) continue;
        uint8_t *buffer = malloc(WINDOW);
        if (buffer == NULL) break;
        *c = (struct connection){.fd = fd, .number = ++last_number, .credit = WINDOW, .buffer = buffer};
        send_frame(c->number, OPEN, NULL, 0);
        return;
    }
    close(fd); /* too many at once */
}

/* The program in the box wrote, or hung up. */
static void take_from_program(struct connection *c) {
    uint8_t bytes[CHUNK];
    size_t most = c->credit < CHUNK ? c->credit : CHUNK;
    ssize_t length = recv(c->fd, bytes, most, 0);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (length < 0) {
        send_frame(c->number, CLOSE, NULL, 0);
        drop(c);
    } else if (length == 0) {
        c->read_ended = 1;
        send_frame(c->number, END, NULL, 0);
    } else {
        c->credit -= (uint32_t)length;
        send_frame(c->number, DATA, bytes, (uint32_t)length);
    }
}

static void give_to_program(struct connection *c) {
    if (c->start < c->end) {
        ssize_t written = send(c->fd, c->buffer + c->start, c->end - c->start, MSG_NOSIGNAL);
        if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (written < 0) {
            send_frame(c->number, CLOSE, NULL, 0);
            drop(c);
            return;
        }
        c->start += (size_t)written;
        send_number(c->number, CREDIT, (uint32_t)written);
    }
    if (c->start < c->end) return;
    c->start = c->end = 0;
    if (c->end_wanted) shutdown(c->fd, SHUT_WR);
    c->end_wanted = 0;
    if (c->closing) drop(c);
}

static void queue_for_program(struct connection *c, const uint8_t *bytes, size_t length) {
    if (c->start > 0) {
        memmove(c->buffer, c->buffer + c->start, c->end - c->start);
        c->end -= c->start;
        c->start = 0;
    }
    if (length > WINDOW - c->end) give_up("the host sent more than it may");
    memcpy(c->buffer + c->end, bytes, length);
    c->end += length;
}

static void obey(uint32_t number, enum kind kind, const uint8_t *bytes, uint32_t length) {
    struct connection *c = find(number);
    if (c == NULL) return; /* it ended meanwhile */
    if (kind == DATA) queue_for_program(c, bytes, length);
    if (kind == END) c->end_wanted = 1;
    if (kind == CLOSE) c->closing = c->read_ended = 1;
    if (kind == CREDIT && length == 4) c->credit += get_u32(bytes);
}

/* Frames may come in pieces: what is incomplete waits here. */
static void take_from_host(void) {
    static uint8_t buffer[HEADER + CHUNK];
    static size_t filled;
    ssize_t length = read(STDIN_FILENO, buffer + filled, sizeof buffer - filled);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (length <= 0) exit(0);
    filled += (size_t)length;
    size_t at = 0;
    while (filled - at >= HEADER) {
        uint32_t size = get_u32(buffer + at + 4);
        if (size > CHUNK) give_up("the host sent too large a frame");
        if (filled - at < HEADER + size) break;
        obey(get_u32(buffer + at), buffer[at + 8], buffer + at + HEADER, size);
        at += HEADER + size;
    }
    memmove(buffer, buffer + at, filled - at);
    filled -= at;
}

static int listen_on_loopback(uint16_t *port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0) give_up("socket");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) < 0) give_up("bind");
    if (listen(listener, 64) < 0) give_up("listen");
    if (getsockname(listener, (struct sockaddr *)&address, &size) < 0) give_up("getsockname");
    *port = ntohs(address.sin_port);
    return listener;
}

static void wait_and_act(int listener) {
    struct pollfd polled[MOST_CONNECTIONS + 2] = {{STDIN_FILENO, POLLIN, 0}, {listener, POLLIN, 0}};
    for (int i = 0; i < MOST_CONNECTIONS; i++) {
        struct connection *c = &connections[i];
        short events = 0;
        if (c->fd >= 0 && c->credit > 0 && !c->read_ended) events |= POLLIN;
        if (c->fd >= 0 && (c->start < c->end || c->end_wanted || c->closing)) events |= POLLOUT;
        polled[i + 2] = (struct pollfd){events ? c->fd : -1, events, 0};
    }
    if (poll(polled, MOST_CONNECTIONS + 2, -1) < 0) return;
    for (int i = 0; i < MOST_CONNECTIONS; i++) {
        struct connection *c = &connections[i];
        if (polled[i + 2].revents & POLLOUT) give_to_program(c);
        if (c->fd >= 0 && c->credit > 0 && polled[i + 2].revents & (POLLIN | POLLERR | POLLHUP)) take_from_program(c);
    }
    if (polled[0].revents) take_from_host();
    if (polled[1].revents) accept_one(listener);
}

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    if (count > 0) unlink(words[0]); /* it was put here for this one use */
    for (int i = 0; i < MOST_CONNECTIONS; i++) connections[i].fd = -1;
    uint16_t port;
    int listener = listen_on_loopback(&port);
    send_number(0, PORT, port);
    for (;;) wait_and_act(listener);
}
