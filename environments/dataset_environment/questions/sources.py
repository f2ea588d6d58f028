"""Where rows come from: files, folders, packages and the Hugging Face Hub, all through ``datasets``.

A local file or folder of the name goes before the hub. Nothing here waits for a network that is not there: a data set
that is neither local, nor cached, nor to be had is an error at once, which says how to get it.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.hub import hub_answers
from environments.dataset_environment.questions.csv_cells import as_text, with_numbers
from environments.dataset_environment.questions.json_rows import JsonRows, as_objects

logger = logging.getLogger(__name__)

Rows = Any
"""A ``datasets.Dataset`` or ``JsonRows``: a sequence of mappings that is read from disk as it is needed."""

PACKAGE = "package:"
BUILDERS: Mapping[str, str] = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
}
_FOLDERS_OF_SPLITS = frozenset(
    {"data", "train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"}
)
"""Folders that are no configurations, in the hub's layout."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True)
class Source:
    """A split of a data set, as the settings name it."""

    name: str
    config: str | None
    split: str
    setting: str = "dataset_name"
    """What a person changes where it cannot be had."""

    def row_id(self, index: int) -> str:
        """Names a row that has no id of its own."""
        name = Path(self.name).name if Path(self.name).is_absolute() else self.name.removeprefix(PACKAGE)
        return f"{name}/{self.split}/{index}"

    def __str__(self) -> str:
        config = f" ({self.config})" if self.config else ""
        return f"{self.name}{config}, split {self.split}"


def load_rows(source: Source) -> Rows:
    """The rows of a split. Raises: ConfigError, which says what is missing and how to get it."""
    datasets = _library()
    datasets.disable_progress_bars()
    # or else it tells the hub of every file it reads, which takes seconds without a network
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    with _as_config_errors(source, datasets):
        rows = _load(source, datasets)
        _warn_of_mixed_columns(rows, source, datasets)
        return rows


def _load(source: Source, datasets: Any) -> Rows:
    name = source.name
    if name.startswith(PACKAGE):
        return _load_files(source, [_file_of_package(name)], datasets)
    path = Path(name).expanduser().absolute()
    if path.is_dir():
        return _load_saved(source, path, datasets) if _is_saved(path) else _load_folder(source, path, datasets)
    if path.is_file():
        return _load_files(source, [path], datasets)
    if glob.has_magic(name):
        return _load_files(source, _matching(source), datasets)
    if name.startswith(("/", "./", "../", "~")) or path.suffix in (*BUILDERS, *COMPRESSED):
        raise ConfigError(f"{source.setting}: there is no file or folder {name!r} (looked in {Path.cwd()})")
    return _load_from_hub(source, datasets)


# files and folders


def _load_files(source: Source, paths: Sequence[Path], datasets: Any) -> Rows:
    options = {"delimiter": "\t"} if all(".tsv" in path.suffixes for path in paths) else {}
    files = {"train": [str(path) for path in paths]}
    return _read(_builder_of(paths, source), source, datasets, data_files=files, **options)


def _read(name: str, source: Source, datasets: Any, config: str | None = None, **options: Any) -> Rows:
    """What ``load_dataset`` reads, but each value as it is written, unless the data set itself declares the types."""
    builder = datasets.load_dataset_builder(name, config, **options)
    guessed = builder.info.features is None
    if guessed and builder.name == "json" and builder.config.field is None:
        return _json_rows(dict(builder.config.data_files), source, datasets, options.get("cache_dir"))
    if guessed and builder.name == "csv":
        options |= as_text(builder.config, datasets)
        return with_numbers(datasets.load_dataset(name, config, split=source.split, **options), datasets)
    return datasets.load_dataset(name, config, split=source.split, **options)


def _json_rows(files: Mapping[str, Any], source: Source, datasets: Any, cache_dir: str | None) -> JsonRows:
    filled = {split: [path for path in paths if Path(path).stat().st_size] for split, paths in files.items()}
    filled = {split: paths for split, paths in filled.items() if paths}
    lines = datasets.load_dataset("text", data_files=filled, cache_dir=cache_dir) if filled else {}
    objects = {name: as_objects(each, datasets) for name, each in lines.items()}
    columns = dict.fromkeys(column for _, names in objects.values() for column in names)
    if not columns:
        raise ConfigError(f"{source.setting}: {source} has no rows: its files are empty")
    rows = _part_of({name: each for name, (each, _) in objects.items()}, source.split, datasets)
    return JsonRows(rows, list(columns))


def _builder_of(paths: Sequence[Path], source: Source) -> str:
    kinds = {next((BUILDERS[s] for s in reversed(path.suffixes) if s in BUILDERS), None) for path in paths}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return kind
    names = ", ".join(path.name for path in paths[:5])
    raise ConfigError(f"{source.setting}: cannot tell the format of {names}; known endings are {', '.join(BUILDERS)}")


def _matching(source: Source) -> list[Path]:
    found = sorted(Path(path) for path in glob.glob(source.name, recursive=True) if Path(path).is_file())
    if not found:
        raise ConfigError(f"{source.setting}: no file matches {source.name!r} (looked in {Path.cwd()})")
    return found


def _file_of_package(name: str) -> Path:
    package, _, inside = name.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        distribution = package.replace("_", "-")
        raise ConfigError(f"{name}: the package {package} is not installed: pip install {distribution}")
    path = Path(next(iter(spec.submodule_search_locations))) / inside
    if not path.is_file():
        raise ConfigError(f"{name}: the installed {package} has no file {inside!r}; another version of it may have")
    return path


def _is_saved(path: Path) -> bool:
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def _load_saved(source: Source, path: Path, datasets: Any) -> Rows:
    """A folder that ``save_to_disk`` wrote, with the same words for splits and slices as elsewhere."""
    saved = datasets.load_from_disk(str(path))
    splits = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    return _part_of(splits, source.split, datasets)


def _part_of(splits: Mapping[str, Any], wanted: str, datasets: Any) -> Any:
    """The rows that words such as ``train[:10]+test`` mean. Raises: ValueError where they mean none."""
    lengths = {str(name): len(rows) for name, rows in splits.items()}
    parts = [
        splits[part.splitname].select(range(part.from_ or 0, _end(part.to, lengths[part.splitname])))
        for part in datasets.ReadInstruction.from_spec(wanted).to_absolute(lengths)
    ]
    return parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)


def _end(to: int | None, length: int) -> int:
    return length if to is None else to


def _load_folder(source: Source, path: Path, datasets: Any) -> Rows:
    """A folder of data files, as the hub's repositories are: with configurations, or without."""
    # of its own accord the cache would not notice that a file of a configuration has changed
    cache = Path(datasets.config.HF_DATASETS_CACHE) / "folders" / _state_of(path)
    load = partial(_read, source=source, datasets=datasets, cache_dir=str(cache))
    known = datasets.get_dataset_config_names(str(path))
    if source.config is None or source.config in known:
        return load(str(path), config=source.config)
    if (path / source.config).is_dir():
        return load(str(path / source.config))
    if known != ["default"]:
        raise ConfigError(f"dataset_config: {source.name} has no {source.config!r}; there are {', '.join(known)}")
    if folders := _folders_of_configurations(path):
        there = ", ".join(folders)
        raise ConfigError(f"dataset_config: {source.name} has no {source.config!r}; its folders are {there}")
    logger.warning("%s names no configurations, so %s is taken to be all of it", source.name, source.config)
    return load(str(path))


def _folders_of_configurations(path: Path) -> list[str]:
    """The folders in one without data of its own, where any of them is more than a split or a place for files."""
    if any(_is_data(file) for file in path.iterdir()):
        return []
    shown = [each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")]
    folders = sorted(each.name for each in shown if any(map(_is_data, each.rglob("*"))))
    return [] if set(folders) <= _FOLDERS_OF_SPLITS else folders


def _is_data(path: Path) -> bool:
    return path.is_file() and any(suffix in BUILDERS for suffix in path.suffixes)


def _state_of(folder: Path) -> str:
    """Names a folder and what is in it, by the sizes and times of its files."""
    state = hashlib.blake2b(str(folder).encode(), digest_size=12)
    for path in sorted(folder.rglob("*")):
        facts = path.stat()
        state.update(f"{path} {facts.st_size} {facts.st_mtime_ns}".encode())
    return state.hexdigest()


# the hub


def _load_from_hub(source: Source, datasets: Any) -> Rows:
    hub = datasets.config.HF_ENDPOINT
    reachable = not datasets.config.HF_HUB_OFFLINE and hub_answers(hub)
    if not reachable and not datasets.config.HF_HUB_OFFLINE and not _is_cached(source, datasets):
        raise ConfigError(_how_to_get(source, f"{hub} does not answer"))
    try:
        with nullcontext() if reachable else _from_the_cache_alone(datasets):
            return datasets.load_dataset(source.name, source.config, split=source.split)
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise ConfigError(_how_to_get(source, str(error))) from error
    except ValueError as error:
        if "find cache" not in str(error):
            raise
        raise ConfigError(_how_to_get(source, str(error).replace("\n", ". "))) from error


@contextmanager
def _from_the_cache_alone(datasets: Any) -> Iterator[None]:
    """``datasets`` would ask a hub that is not there for half a minute, cached or not."""
    before, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _how_to_get(source: Source, problem: str) -> str:
    folder = Path.cwd() / source.name
    return (
        f"{source.setting}: the data set {source.name!r} is not here: {problem}. Put its files into {folder} "
        f"(`hf download {source.name} --repo-type dataset --local-dir {source.name}` where there is a network), set "
        "dataset_path to a file or folder, or set HF_HUB_OFFLINE=1 where it is in the cache already"
    )


def _is_cached(source: Source, datasets: Any) -> bool:
    """Whether an earlier run left it in the cache, from which ``datasets`` takes it without a network."""
    return (Path(datasets.config.HF_DATASETS_CACHE) / source.name.replace("/", "___")).is_dir()


def _warn_of_mixed_columns(rows: Rows, source: Source, datasets: Any) -> None:
    """Say where ``datasets`` has mixed texts up with what they look like, which cannot be undone."""
    mixed = [name for name, each in (getattr(rows, "features", None) or {}).items() if "Json(" in repr(each)]
    if mixed:
        logger.warning(
            "%s was prepared with values of several types in %s: texts there that look like numbers come back as "
            "numbers. Set dataset_path to its JSON files, which are read as they are",
            source,
            ", ".join(mixed),
        )


# the library


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"data sets need the package datasets: pip install 'atroposlib[datasets]' ({error})"
        ) from error
    return datasets


@contextmanager
def _as_config_errors(source: Source, datasets: Any) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except StopIteration as error:  # from files with nothing in them; in a thread it would never reach who waits
        raise ConfigError(f"{source.setting}: {source} has no rows: its files are empty") from error
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        cause = error.__cause__ or error
        raise ConfigError(f"{source.setting}: {source} cannot be read: {type(cause).__name__}: {cause}") from error
