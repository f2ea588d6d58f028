"""A shell session: each command is a process of its own that starts from what the last one left.

The session is a value on the host: a folder and the shell's own ``export -p``, which a command hands back over a
descriptor of its own when it ends. So nothing that a command does can hang or break the session: one that is killed,
that replaces its shell by ``exec``, or that floods its descriptor leaves the session as it was.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace

from sandboxes.base import ExecResult, Shell
from sandboxes.call import Finished
from sandboxes.channel import Channel
from sandboxes.frames import Command, Run
from sandboxes.results import exec_result

logger = logging.getLogger(__name__)

# One line, so that line numbers in messages are those of the command. Arguments: exports, folder, start, command.
#
# The state goes to descriptor 9. bash moves it to 63, out of the way of scripts that use the low ones; sh knows
# single digits only. It is written when the shell leaves by `exit` or `set -e` (by the trap), and at the end of the
# text, where the command may have put a trap of its own in place of ours. Options that the command set do not concern
# this code.
_SCRIPT = " ".join(
    [
        "__save() { set +aeux; [ -z \"${__saved-}\" ] || return 0; __saved=1; command pwd; printf '\\0'; export -p; };",
        'if [ -n "${BASH_VERSION-}" ]; then exec 63>&9 9>&-; __state() { __save >&63; };',
        "else __state() { __save >&9; }; fi;",
        'command cd -- "$2" 2>/dev/null || __gone=1;',
        'if [ -n "$1" ]; then unset HOME OLDPWD; eval "$1" 2>/dev/null; fi;',
        'if [ -n "${__gone-}" ]; then',
        'command cd -- "$3" && printf \'shell: %s is gone; now in %s\\n\' "$2" "$3" >&2 || exit 126; fi;',
        "trap '{ __state; } 2>/dev/null' EXIT;",
        '__command=$4; set --; eval "$__command";',
        '{ set -- $?; __state; exit "$1"; } 2>/dev/null',
    ]
)
_ARGUMENT_LIMIT = 100_000
"""Bytes; the kernel takes 128 KiB for one argument."""


@dataclass(frozen=True)
class _Session:
    folder: str
    exports: str


class RunnerShell(Shell):
    """A session whose commands run like ``template``: as its user, at first in its folder and with its environment."""

    def __init__(self, channel: Channel, template: Command, translate: Callable[[str], str] = str) -> None:
        self._channel = channel
        self._template = template
        self._translate = translate
        self._session: _Session | None = None

    async def run(self, command: str, *, timeout_s: float = 180.0, output_limit: int = 50_000) -> ExecResult:
        request = replace(
            self._template,
            arguments=self._arguments(self._translate(command)),
            flags=Run.SHELL | Run.MERGE | Run.STATE,
            environment=self._template.environment if self._session is None else {},
            time_limit_s=timeout_s,
            head=output_limit - output_limit // 2,
            tail=output_limit // 2,
        )
        finished = await self._channel.run(request)
        self._session = _session_of(finished) or self._session
        return exec_result(finished, without_stderr=True)

    def _arguments(self, command: str) -> tuple[str, ...]:
        start = self._template.folder or "/"
        session = self._session or _Session(folder=start, exports="")
        # The newline: bash takes what follows for a part of a command that ends in a backslash.
        given = (session.exports, session.folder, start, command + "\n")
        if sum(len(text.encode("utf-8", "surrogateescape")) for text in given) < _ARGUMENT_LIMIT:
            return (_SCRIPT, *given)
        # The runner gives long text to the shell in another way.
        return (f"set -- {shlex.join(given)}\n{_SCRIPT}",)


def _session_of(finished: Finished) -> _Session | None:
    """What the command handed back; None where it ended without, or where that makes no sense."""
    folder, separator, exports = finished.err.decode("utf-8", "surrogateescape").partition("\n\0")
    is_path = folder.startswith("/") and "\n" not in folder
    if not separator or not is_path or "\0" in exports or finished.done.err_omitted:
        logger.debug("a command ended without the state of its shell; the session stays as it was")
        return None
    return _Session(folder, exports)
