"""From what the runner reports to the values of the contract."""

from __future__ import annotations

from sandboxes.base import ExecResult
from sandboxes.call import Finished


def exec_result(finished: Finished, *, without_stderr: bool = False) -> ExecResult:
    """The value of a command; where the middle of a stream was cut, a line in it says so."""
    done = finished.done
    omitted = done.out_omitted + (0 if without_stderr else done.err_omitted)
    return ExecResult(
        exit_code=done.status,
        stdout=_with_notice(finished.out, done.out_omitted, done.out_cut_at),
        stderr=b"" if without_stderr else _with_notice(finished.err, done.err_omitted, done.err_cut_at),
        duration_s=done.duration_s,
        timed_out=done.timed_out,
        omitted_bytes=omitted,
    )


def _with_notice(data: bytes, omitted: int, cut_at: int) -> bytes:
    if not omitted:
        return data
    return b"%b\n[... %d bytes omitted ...]\n%b" % (data[:cut_at], omitted, data[cut_at:])
