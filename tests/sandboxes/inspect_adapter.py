"""A box as a ``SandboxEnvironment`` of ``inspect_ai``, so that its conformance suite can be run against it."""

from __future__ import annotations

from typing import Any

from inspect_ai.util import ExecResult, OutputLimitExceededError, SandboxEnvironment, SandboxEnvironmentLimits

from sandboxes import OutputLimitExceeded, Sandbox, SandboxFileError

_NOT_EXECUTABLE = 126


class BoxEnvironment(SandboxEnvironment):
    """Speaks the other contract: text for bytes, errors for exit codes, limits that are set from outside."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        result = await self.box.exec(
            cmd,
            cwd=cwd,
            env=env,
            user=user,
            stdin=input.encode() if isinstance(input, str) else input or b"",
            timeout_s=timeout,
            output_limit=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
        )
        if result.timed_out:
            raise TimeoutError(f"{cmd[0]} did not end within {timeout} s")
        if result.exit_code == _NOT_EXECUTABLE and b"Permission denied" in result.stderr:
            raise PermissionError(result.stderr.decode())
        return ExecResult(result.exit_code == 0, result.exit_code, result.stdout.decode(), result.stderr.decode())

    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            await self.box.write(file, contents.encode() if isinstance(contents, str) else contents)
        except SandboxFileError as error:
            raise as_builtin(error) from error

    async def read_file(self, file: str, text: bool = True) -> Any:
        try:
            content = await self.box.read(file, limit=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        except OutputLimitExceeded as error:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        except SandboxFileError as error:
            raise as_builtin(error) from error
        return content.decode() if text else content

    @classmethod
    async def sample_cleanup(cls, *_: object, **__: object) -> None:
        """The boxes belong to the fixtures."""


def as_builtin(error: SandboxFileError) -> OSError:
    """The error of the same number that Python itself raises, such as ``FileNotFoundError``."""
    return OSError(error.errno, error.strerror, error.filename)
