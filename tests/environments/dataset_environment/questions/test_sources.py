import gzip
import json
import socket
import time

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib import hub
from atroposlib.errors import ConfigError
from environments.dataset_environment.questions import sources
from environments.dataset_environment.questions.sources import Source, load_rows
from tests.environments.dataset_environment.sums import sums, write_gsm8k, write_jsonl

ROWS = sums(6)


def load(name, split="train", config=None):
    return list(load_rows(Source(str(name), config, split)))


def write(path):
    """Rows in the format that the name of a file says."""
    table = datasets.Dataset.from_list(ROWS)
    if path.name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    elif path.suffix == ".jsonl":
        write_jsonl(path, ROWS)
    elif path.suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".tsv":
        table.to_csv(path, index=False, sep="\t")
    elif path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix == ".arrow":
        table.save_to_disk(path.parent / "arrow_source")
        next((path.parent / "arrow_source").glob("*.arrow")).rename(path)
    return path


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.json", "d.csv", "d.tsv", "d.parquet", "d.arrow"])
def test_every_format_gives_the_same_rows(tmp_path, name):
    assert load(write(tmp_path / name)) == ROWS


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", ROWS),
        ("train[:2]", ROWS[:2]),
        ("train[-2:]", ROWS[-2:]),
        ("train[50%:]", ROWS[3:]),
        ("train[:100]", ROWS),
        ("train[:1]+train[4:5]", [ROWS[0], ROWS[4]]),
    ],
)
def test_slices_of_a_split_are_taken_from_files_and_saved_folders_alike(tmp_path, split, expected):
    assert load(write_jsonl(tmp_path / "d.jsonl", ROWS), split) == expected
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    assert load(tmp_path / "saved", split) == expected
    datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "saved_splits")
    assert load(tmp_path / "saved_splits", split) == expected


def test_several_files_match_a_pattern(tmp_path):
    write_jsonl(tmp_path / "part-1.jsonl", ROWS[:2])
    write_jsonl(tmp_path / "part-2.jsonl", ROWS[2:])
    assert load(tmp_path / "part-*.jsonl") == ROWS


ANY_JSON = [
    {"q": "a", "answer": 1},
    {"q": "b", "answer": "007"},
    {"q": "c", "answer": ["1.10", 2, "true", [None, "1e3"]]},
    {"q": "d", "answer": None, "date": "2020-01-01"},
    {"q": "e", "answer": 12345678901234567890123, "meta": {"gold": "1.0"}},
    {"q": "f", "answer": {"of": "3"}, "date": "2020-01-01T10:00:00", "meta": {"gold": 1}},
]


def with_all_columns(rows):
    return [{"q": None, "answer": None, "date": None, "meta": None} | row for row in rows]


def as_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        as_lines(ANY_JSON),
        "\ufeff\n" + as_lines(ANY_JSON).replace("\n", "\r\n\r\n"),
        json.dumps(ANY_JSON),
        "\ufeff" + json.dumps(ANY_JSON, indent=1),
        "\n".join(json.dumps(row, indent=1) for row in ANY_JSON),
    ],
)
def test_every_value_of_json_is_what_is_written(tmp_path, text):
    (tmp_path / "d.json").write_text(text)
    assert load(tmp_path / "d.json") == with_all_columns(ANY_JSON)
    assert load(tmp_path / "d.json", "train[1:3]") == with_all_columns(ANY_JSON[1:3])


def test_values_of_a_folder_are_what_is_written(here):
    write_jsonl(here / "flat" / "train.jsonl", ANY_JSON)
    assert load("flat") == with_all_columns(ANY_JSON)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"a": st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4)}
        ),
        min_size=1,
    )
)
@settings(max_examples=10, deadline=None)
def test_whatever_was_written_as_json_lines_comes_back(tmp_path_factory, rows):
    assert load(write_jsonl(tmp_path_factory.mktemp("any") / "d.jsonl", rows)) == rows


def test_one_object_of_columns_and_a_list_of_texts_are_rows_too(tmp_path):
    (tmp_path / "columns.json").write_text('{"q": ["a", "b"],\n "answer": ["1", 2]}')
    (tmp_path / "texts.json").write_text('["007", "x"]')
    assert load(tmp_path / "columns.json") == [{"q": "a", "answer": "1"}, {"q": "b", "answer": 2}]
    assert load(tmp_path / "texts.json") == [{"text": "007"}, {"text": "x"}]


def test_cells_of_a_csv_file_are_what_is_written(here):
    text = "q,answer,right,share\na,NA,0,0.5\nb,None,1,\nc,007,2,1.25\nd,,3,2.5\n"
    rows = [
        {"q": "a", "answer": "NA", "right": 0, "share": 0.5},
        {"q": "b", "answer": "None", "right": 1, "share": None},
        {"q": "c", "answer": "007", "right": 2, "share": 1.25},
        {"q": "d", "answer": None, "right": 3, "share": 2.5},
    ]
    (here / "d.csv").write_text(text)
    (here / "folder").mkdir()
    (here / "folder" / "train.csv").write_text(text)
    assert load("d.csv") == load("folder") == rows


def test_texts_that_were_mixed_up_when_the_data_was_prepared_are_warned_of(tmp_path, caplog):
    datasets.Dataset.from_list([{"a": "007"}, {"a": [1]}], on_mixed_types="use_json").save_to_disk(tmp_path / "saved")
    load(tmp_path / "saved")
    assert "several types in a: texts there that look like numbers come back as numbers" in caplog.text


def test_a_folder_of_the_hubs_name_goes_before_the_hub(here):
    write_gsm8k(here / "gsm8k", train=5, test=1)
    assert load("gsm8k", config="main") == sums(5)
    assert load("gsm8k", "test", config="main") == sums(6)[5:]


def test_a_file_that_has_changed_is_read_again(here):
    write_gsm8k(here / "gsm8k", train=5)
    write_jsonl(here / "d.jsonl", ROWS[:2])
    assert (len(load("gsm8k", config="main")), len(load("d.jsonl"))) == (5, 2)
    write_gsm8k(here / "gsm8k", train=7)
    write_jsonl(here / "d.jsonl", ROWS[:4])
    assert (len(load("gsm8k", config="main")), len(load("d.jsonl"))) == (7, 4)


def test_folders_need_no_list_of_their_configurations(here):
    write_jsonl(here / "org" / "data" / "main" / "train.jsonl", ROWS)
    write_jsonl(here / "flat" / "train.jsonl", ROWS)
    assert load("org/data", config="main") == ROWS
    assert load("flat", config="main") == ROWS
    assert load("flat") == ROWS


def test_folders_of_splits_are_no_configurations(here):
    write_jsonl(here / "split" / "train" / "a.jsonl", ROWS[:2])
    write_jsonl(here / "split" / "test" / "a.jsonl", ROWS)
    write_jsonl(here / "kept" / "data" / "train.jsonl", ROWS)
    assert load("split", config="main") == ROWS[:2]
    assert load("kept", config="main") == ROWS


@pytest.mark.parametrize("beside", ["README.md", ".git/config.json"])
def test_a_mistyped_folder_is_told_with_those_that_there_are(here, beside):
    for name in ("main", "socratic"):
        write_jsonl(here / "own" / name / "train.jsonl", ROWS)
    (here / "own" / beside).parent.mkdir(exist_ok=True)
    (here / "own" / beside).write_text("{}")
    with pytest.raises(ConfigError, match=r"dataset_config: own has no 'mian'; its folders are main, socratic$"):
        load("own", config="mian")
    write_jsonl(here / "own" / "train.jsonl", ROWS)
    assert load("own", config="mian")


def test_a_file_of_an_installed_package_is_found_by_the_package(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "some_benchmark" / "data" / "cases.jsonl", ROWS)
    (tmp_path / "some_benchmark" / "__init__.py").write_text("raise RuntimeError('never imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("package:some_benchmark/data/cases.jsonl") == ROWS


@pytest.mark.parametrize(
    ("name", "split", "config", "complaint"),
    [
        ("gsm8k", "tests", "main", r"gsm8k \(main\), split tests cannot be read: .*Unknown split \"tests\""),
        ("gsm8k", "train", "socratic", "dataset_config: gsm8k has no 'socratic'; there are main"),
        ("gsm8k", "train[:x]", "main", "split train.:x. cannot be read"),
        ("nowhere.jsonl", "train", None, "there is no file or folder 'nowhere.jsonl'"),
        ("./nowhere", "train", None, "there is no file or folder './nowhere'"),
        ("parts-*.jsonl", "train", None, "no file matches"),
        ("notes.pdf", "train", None, "cannot tell the format of notes.pdf"),
        ("broken.jsonl", "train", None, "broken.jsonl, split train cannot be read: .*Expecting value: line 2"),
        ("numbers.jsonl", "train", None, "a row is an object or a text, not 2"),
        ("empty", "train", None, "empty, split train cannot be read"),
        ("nothing.jsonl", "train", None, "nothing.jsonl, split train has no rows: its files are empty"),
        ("package:no_such_package/x.jsonl", "train", None, "not installed: pip install no-such-package"),
        ("package:datasets/no_such_file.jsonl", "train", None, "has no file 'no_such_file.jsonl'"),
    ],
)
def test_what_cannot_be_read_is_one_message_that_names_it(here, name, split, config, complaint):
    write_gsm8k(here / "gsm8k")
    (here / "notes.pdf").write_text("%PDF")
    (here / "broken.jsonl").write_text('{"a": 1}\n{"a": \n')
    (here / "numbers.jsonl").write_text('{"a": 1}\n2\n')
    (here / "empty").mkdir()
    (here / "nothing.jsonl").touch()
    with pytest.raises(ConfigError, match=complaint):
        load(name, split, config)


def test_nobody_is_told_of_local_files_that_are_read(here, monkeypatch):
    asked = []

    def resolve(host, *_args, **_kwargs):
        asked.append(host)
        raise OSError("no network")

    write_gsm8k(here / "gsm8k")
    write_jsonl(here / "d.jsonl", ROWS)
    (here / "d.csv").write_text("a,b\n1,2\n")
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert [len(load(name)) for name in ("gsm8k", "d.jsonl", "d.csv")] == [40, len(ROWS), 1]
    assert asked == []


def test_without_a_network_a_name_of_the_hub_is_an_error_at_once_that_says_how_to_get_it(here, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(ConfigError, match="hf download org/absent --repo-type dataset"):
        load("org/absent")
    assert time.monotonic() - started < hub.REACH_S + 1


def test_without_a_network_the_cache_is_taken_at_once_and_what_it_lacks_is_named(here, monkeypatch):
    cache = here / "cache"
    datasets.load_dataset(str(write_gsm8k(here / "gsm8k")), "main", cache_dir=str(cache))
    (config,) = (cache / "gsm8k").iterdir()
    config.rename(cache / "gsm8k" / "main")
    (cache / "gsm8k").rename(cache / "org___gsm8k")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    started = time.monotonic()
    assert load("org/gsm8k", config="main") == sums(40)
    with pytest.raises(ConfigError, match=r"for config 'socratic'\. Available .*main.*hf download org/gsm8k"):
        load("org/gsm8k", config="socratic")
    assert time.monotonic() - started < hub.REACH_S + 1


def test_a_hub_that_never_answers_is_not_waited_for(here, monkeypatch, silent_address):
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", silent_address)
    monkeypatch.setattr(hub, "REACH_S", 0.3)
    with pytest.raises(ConfigError, match="does not answer"):
        load("org/absent")


def test_offline_mode_asks_nobody(here, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(sources, "hub_answers", None)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        load("org/absent")


@pytest.fixture
def silent_address():
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
