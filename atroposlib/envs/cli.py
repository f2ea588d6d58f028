"""``my_env.py serve | process | evaluate``: from words to a finished run, and an exit code.

0    done
1    the run failed; what raised is shown
2    a setting is wrong: one message that names it
130  stopped by Ctrl-C (143 by SIGTERM, 129 by the end of its terminal), after a clean end, which a second signal cuts
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from atroposlib.envs.addresses import check_addresses, check_urls
from atroposlib.envs.argv import Flag, split_flags
from atroposlib.envs.engines import Mode, prepare_engines
from atroposlib.envs.eval_results import METRICS_FILE
from atroposlib.envs.help import MODES, mode_help, usage
from atroposlib.envs.masking import masked
from atroposlib.envs.methods import called, check_defined
from atroposlib.envs.offline import NothingCollected
from atroposlib.envs.recording import check_writable, readable_rollout, writing
from atroposlib.envs.settings import Defaults, Settings, settings_from
from atroposlib.envs.workers import uninterrupted
from atroposlib.errors import AtroposError, ConfigError, EngineRefused, EngineUnavailable, QueueUnavailable

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

logger = logging.getLogger(__name__)

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run; the last stays ignored where it is from the start, as under nohup."""
EVALUATE_CONFIG_FILE = "evaluate_config.yaml"
_OF_THE_ENGINE = frozenset({"EngineUnavailable", "EngineBusy", "EngineRefused", "engine_error"})
"""Reasons of rollouts that failed at the engine."""
_CHECK_ENGINE = "is the engine there, and does it serve that model? See --openai.base_url and --openai.model_name"


def run_cli(env_class: type[BaseEnv], argv: Sequence[str] | None = None) -> None:
    """Run an environment as the words (or ``sys.argv``) say. Raises: SystemExit unless all is well."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(env_class, words)
    except ConfigError as error:
        _say(f"{_program()}: {error}", sys.stderr)
        code = 2
    if code:
        raise SystemExit(code)


def _run(env_class: type[BaseEnv], words: Sequence[str]) -> int:
    if not words or words[0] not in MODES:
        if words and words[0] in ("-h", "--help"):
            _say(usage(_program()))
            return 0
        raise ConfigError(_no_mode(words))
    mode, flags = cast("Mode", words[0]), split_flags(words[1:])
    if any(flag.name == "help" for flag in flags):
        _say(mode_help(_program(), mode, env_class, defaults_of(env_class, mode)))
        return 0
    shown = next((flag.values[0] for flag in flags if flag.name == "show" and flag.values), None)
    if shown is not None and mode == "process":
        _say(readable_rollout(Path(shown)))
        return 0
    return _run_mode(env_class, mode, flags)


def _no_mode(words: Sequence[str]) -> str:
    if near := get_close_matches(words[0].lower(), MODES, n=1) if words else []:
        return f"unknown mode {words[0]!r}; is {near[0]} meant?"
    return f"say what to do: {', '.join(MODES)}\n\n{usage(_program())}"


def defaults_of(env_class: type[BaseEnv], mode: Mode) -> Defaults:
    """What the environment and the mode bring. Raises: ConfigError where ``config_init`` cannot be read."""
    env, servers = _config_init(env_class)
    mode_env: dict[str, Any] = {}
    if mode == "process":
        path = f"data/{env_class.name or 'groups'}.jsonl"
        mode_env = {"ensure_scores_are_not_same": False, "include_messages": True, "data_path_to_save_groups": path}
    cls = type(env) if isinstance(env, env_class.env_config_cls) else env_class.env_config_cls
    return Defaults(env, servers, cls, mode_env, extra=env_class.extra_settings(), read_config=env_class.read_config)


def _config_init(env_class: type[BaseEnv]) -> tuple[Any, Any]:
    try:
        return env_class.config_init()[:2]
    except ValidationError as error:
        # a setting without a default is the user's to give
        if all(fault["type"] == "missing" for fault in error.errors()):
            from atroposlib.envs.server_handling.server_baseline import ServerBaseline

            return env_class.env_config_cls.model_construct(), ServerBaseline()
        raise ConfigError(f"{env_class.__name__}.config_init: {error}") from error


def _run_mode(env_class: type[BaseEnv], mode: Mode, flags: Sequence[Flag]) -> int:
    check_defined(env_class, mode)
    settings = settings_from(flags, defaults_of(env_class, mode))
    check_urls(settings)
    _check_steps(settings, mode)
    if settings.options.show is not None and mode != "process":
        raise ConfigError("--show belongs to process")
    if mode == "serve":
        check_addresses(settings)
    _check_folders(settings, mode)
    options = settings.options
    env = env_class.from_settings(settings.env, settings.servers, options.slurm, options.testing, settings.extra)
    if options.max_n_completions is not None:
        env.server.max_n_completions = options.max_n_completions
    if options.proxy_url is not None:
        env.server.proxy_url, env.server.use_proxy = options.proxy_url, True
    earlier = _results_of(settings)
    code = _run_to_the_end(env, mode, settings)
    _say_what_is_left(env, mode, settings)
    if mode != "process" and settings.env.data_dir_to_save_evals and _results_of(settings) != earlier:
        _say_results(settings, mode)
    return code


def _check_steps(settings: Settings, mode: Mode) -> None:
    steps = settings.env.total_steps
    if steps < 1 and mode != "evaluate":
        what = "groups are made" if mode == "process" else "steps are run"
        raise ConfigError(f"--env.total_steps is {steps}, so no {what}; it must be at least 1")


def _check_folders(settings: Settings, mode: Mode) -> None:
    env = settings.env
    if env.data_path_to_save_groups and mode != "evaluate":
        if Path(env.data_path_to_save_groups).is_dir():
            raise ConfigError(
                f"--env.data_path_to_save_groups: {env.data_path_to_save_groups} is a folder; name a file"
            )
        check_writable(Path(env.data_path_to_save_groups).parent, "--env.data_path_to_save_groups")
    if env.metrics_dir:
        check_writable(Path(env.metrics_dir), "--env.metrics_dir")
    if env.data_dir_to_save_evals and mode != "process":
        check_writable(Path(env.data_dir_to_save_evals), "--env.data_dir_to_save_evals")


def _write_evaluate_config(settings: Settings, path: Path) -> None:
    """What the evaluation is made with, secrets masked, as a file for ``--config``."""
    import yaml

    document = {
        "env": masked(settings.env),
        "openai": masked(settings.servers),
        **{name: masked(model) for name, model in settings.extra.items()},
        "slurm": settings.options.slurm,
        "testing": settings.options.testing,
    }
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    with writing("--env.data_dir_to_save_evals", path):
        try:
            path.write_text(text, encoding="utf-8")
        except OSError:
            path.unlink(missing_ok=True)  # half a file, or that of an earlier evaluation, says nothing of these results
            raise


def _run_to_the_end(env: BaseEnv, mode: Mode, settings: Settings) -> int:
    stopped_by: list[int] = []
    try:
        asyncio.run(_run_async(env, mode, settings, stopped_by))
    except ConfigError:
        raise
    except (EngineUnavailable, EngineRefused) as error:
        if env.engine_facts is None and settings.engine_chosen:
            raise ConfigError(str(error)) from error
        return _failed(error)
    except (asyncio.CancelledError, KeyboardInterrupt):
        number = stopped_by[0] if stopped_by else signal.SIGINT
        _say(f"{mode} was stopped by {signal.Signals(number).name}", sys.stderr)
        return 128 + number
    except NothingCollected as error:
        if env.rollout_failures and set(env.rollout_failures) <= _OF_THE_ENGINE and not _anything_recorded(env):
            raise ConfigError(f"{error}; {_CHECK_ENGINE}") from error
        return _failed(error)
    except QueueUnavailable as error:
        if env.env_id is None:
            raise ConfigError(str(error)) from error
        return _failed(error)
    except AtroposError as error:
        return _failed(error)
    except Exception:
        logger.exception("%s failed", mode)
        return 1
    return 0


def _anything_recorded(env: BaseEnv) -> bool:
    return env.recorder is not None and env.recorder.written > 0


def _failed(error: Exception) -> int:
    _say(f"{_program()}: {error}", sys.stderr)
    logger.debug("the run failed", exc_info=error)
    return 1


async def _run_async(env: BaseEnv, mode: Mode, settings: Settings, stopped_by: list[int]) -> None:
    run = {"serve": env.env_manager, "process": env.process_manager, "evaluate": env.evaluate_manager}[mode]
    with _signals_cancel(stopped_by):
        try:
            await called(env, "preflight")
            await prepare_engines(env, mode, settings)
            await run()
        finally:
            await uninterrupted(env.aclose())


@contextmanager
def _signals_cancel(stopped_by: list[int]) -> Iterator[None]:
    """The first signal cancels the running task; the second one ends clean-up too, the third the process.

    Plain handlers, not the loop's, so that they work while an environment's code blocks the loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped_by.append(number)
        if len(stopped_by) > 1:
            for each in usual:
                signal.signal(each, signal.SIG_DFL)
            raise KeyboardInterrupt
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    usual = {each: signal.signal(each, stop) for each in _ENDING if not (nohup and each == signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


# what a run says at its end


def _say_what_is_left(env: BaseEnv, mode: Mode, settings: Settings) -> None:
    """Name the files of the run, each with the command to look at it."""
    recorder = env.recorder
    if recorder is not None and recorder.path is not None:
        shown = shlex.quote(str(recorder.path))
        groups = "1 group is" if recorder.written == 1 else f"{recorder.written} groups are"
        _say(f"{groups} in {recorder.path}. To look at one: {_program()} process --show {shown}")
        if mode == "process" and settings.options.show:
            _say(readable_rollout(recorder.path))


def _results_of(settings: Settings) -> int | None:
    """When the results that stand in the folder were written, if there are any: so those of this run are known."""
    path = Path(settings.env.data_dir_to_save_evals or "") / METRICS_FILE
    return path.stat().st_mtime_ns if path.is_file() else None


def _say_results(settings: Settings, mode: Mode) -> None:
    folder = Path(settings.env.data_dir_to_save_evals or "")
    if mode == "evaluate":
        _write_evaluate_config(settings, folder / EVALUATE_CONFIG_FILE)
    _say(f"The results are in {folder}. To look at them: cat {shlex.quote(str(folder / METRICS_FILE))}")


def _program() -> str:
    """How this program was started, as somebody would type it again."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name:
        return f"python -m {spec.name.removesuffix('.__main__')}"
    return f"python {shlex.quote(sys.argv[0])}" if sys.argv and sys.argv[0] else "python"


def _say(text: str, stream: Any = None) -> None:
    (stream or sys.stdout).write(text.rstrip("\n") + "\n")
