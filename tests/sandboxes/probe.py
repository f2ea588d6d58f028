"""What a process in a box can reach; runs inside, by ``python3 - < probe.py``; its victims are JSON in ``$VICTIMS``.

Prints a JSON object: the name of each attempt to whether it got through. Nothing here does harm where it gets through.
"""

import ctypes
import errno
import json
import os
import platform
import socket
import sys
from pathlib import Path

victims = json.loads(os.environ["VICTIMS"])
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
CALLS = {
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "setns": (308, 268),
    "unshare": (272, 97),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "syslog": (103, 116),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "acct": (163, 89),
}
reached = {}


def attempt(name, action):
    try:
        reached[name] = bool(action())
    except OSError:
        reached[name] = False


def call(number, *arguments):
    """Whether the kernel took the call at all: any answer but a refusal counts."""
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(argument) for argument in arguments])
    return result >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EACCES)


def connects(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        client.connect(address)
    return True


def writes_its_own_content(path):
    setting = Path(path)
    return setting.write_text(setting.read_text()) >= 0


def new_user_namespace_by_clone():
    child = libc.syscall(ctypes.c_long(56 if X86 else 220), ctypes.c_long(0x10000000 | 17), 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return child > 0


def escapes_by_chroot():
    os.mkdir("/tmp/jail")
    os.chroot("/tmp/jail")
    return True


def makes_a_disk():
    os.mknod("/tmp/disk", 0o660 | 0o060000, os.makedev(254, 0))
    return True


def talks_to_itself():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return connects(socket.AF_INET, server.getsockname())


for name, numbers in CALLS.items():
    attempt(name, lambda number=numbers[0 if X86 else 1]: call(number, 0, 0, 0, 0, 0))
attempt("clone into a user namespace", new_user_namespace_by_clone)
attempt("TIOCSTI", lambda: call(16 if X86 else 29, 0, 0x5412, 0))
attempt("AF_VSOCK", lambda: socket.socket(40, socket.SOCK_STREAM))
attempt("AF_PACKET", lambda: socket.socket(17, socket.SOCK_RAW))
attempt("AF_ALG", lambda: socket.socket(38, socket.SOCK_SEQPACKET))
attempt("socket of the host", lambda: connects(socket.AF_INET, ("127.0.0.1", victims["port"])))
attempt("address of the host", lambda: connects(socket.AF_INET, (victims["address"], victims["port"])))
attempt("abstract socket of the host", lambda: connects(socket.AF_UNIX, "\0" + victims["abstract"]))
attempt("docker's socket", lambda: connects(socket.AF_UNIX, "/var/run/docker.sock"))
for path in victims["files"]:
    attempt("read " + path, lambda path=path: os.listdir(path) if os.path.isdir(path) else Path(path).read_bytes())
for path in victims["settings"]:
    attempt("write " + path, lambda path=path: writes_its_own_content(path))
attempt("memory of PID 1", lambda: Path("/proc/1/mem").open("rb").close() is None)
attempt("environment of PID 1", lambda: Path("/proc/1/environ").read_bytes())
attempt("files of PID 1", lambda: os.listdir("/proc/1/fd"))
attempt("root of PID 1", lambda: os.listdir("/proc/1/root"))
attempt("write to /usr", lambda: Path("/usr/written").touch() is None)
attempt("chroot", escapes_by_chroot)
attempt("make a block device", makes_a_disk)
attempt("kernel log", lambda: Path("/dev/kmsg").open("rb").close() is None)
reached["interfaces"] = [name for _, name in socket.if_nameindex()]
reached["processes"] = [
    (process / "cmdline").read_text().replace("\0", " ").strip() for process in Path("/proc").glob("[0-9]*")
]
reached["network inside"] = talks_to_itself()
sys.stdout.write(json.dumps(reached))
