#!/usr/bin/env bash
# Starts a Docker daemon in the background unless one answers already, and waits until it does.
#   scripts/start_dockerd.sh            as root, with Debian's docker.io (or any dockerd) installed
# DOCKERD_LOG names the log (default /var/log/dockerd.log), DOCKERD_WAIT_S how long to wait (default 60).
set -euo pipefail

socket=/var/run/docker.sock
log=${DOCKERD_LOG:-/var/log/dockerd.log}
wait_s=${DOCKERD_WAIT_S:-60}

say() { echo "start_dockerd: $*" >&2; }

answers() {
    [ -S "$socket" ] && timeout 5 python3 - "$socket" <<'PYTHON' 2>/dev/null
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
sys.exit(b" 200 " not in connection.recv(64))
PYTHON
}

# One starter at a time: a second one waits, then finds the daemon of the first.
exec 9>/tmp/start_dockerd.lock
flock 9

if answers; then
    say "a daemon answers on $socket"
    exit 0
fi
if ! command -v dockerd >/dev/null; then
    say "no dockerd on this machine: apt-get install docker.io"
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    say "dockerd must be started as root: sudo $0"
    exit 1
fi

# Left by a daemon that was killed, it would keep the new one from starting.
if [ -f /var/run/docker.pid ] && ! kill -0 "$(cat /var/run/docker.pid)" 2>/dev/null; then
    rm -f /var/run/docker.pid
fi

setsid nohup dockerd --host "unix://$socket" >>"$log" 2>&1 9>&- </dev/null &
daemon=$!
for ((i = 0; i < wait_s * 5; i++)); do
    if answers; then
        say "started, process $daemon, log in $log"
        exit 0
    fi
    if ! kill -0 "$daemon" 2>/dev/null; then
        say "dockerd ended while starting; the end of $log:"
        tail -n 20 "$log" >&2
        exit 1
    fi
    sleep 0.2
done
say "dockerd did not answer within $wait_s s; the end of $log:"
tail -n 20 "$log" >&2
exit 1
