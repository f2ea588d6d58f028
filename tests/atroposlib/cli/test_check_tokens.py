"""The command that checks recorded groups."""

import asyncio
import copy
import itertools
import json

import pytest

from atroposlib.cli.check_tokens import main
from atroposlib.envs.recording import GroupRecorder
from atroposlib.envs.server_handling.byte_tokenizer import ByteTokenizer
from atroposlib.envs.server_handling.certificate import Certificate
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.server_handling.server_manager import ServerManager


@pytest.fixture(autouse=True)
def tokenizer(monkeypatch):
    monkeypatch.setattr("atroposlib.cli.check_tokens.load_tokenizer", lambda name: TOKENIZERS[name])
    return TOKENIZERS["bytes"]


class FewIds(ByteTokenizer):
    def __len__(self):
        return 100


TOKENIZERS = {"bytes": ByteTokenizer(), "other": ByteTokenizer("another template"), "few": FewIds()}


@pytest.fixture
def group(tokenizer):
    """Two rollouts of two turns."""
    return asyncio.run(record(tokenizer))


async def record(tokenizer):
    manager = ServerManager([ScriptedServer(["I look.", "It is 4.", "Hm.", "No."], tokenizer=tokenizer)])
    made = {"tokens": [], "masks": [], "inference_logprobs": [], "scores": [1.0, 0.0], "overrides": []}
    for _ in range(2):
        async with manager.managed_server(tokenizer=tokenizer) as managed:
            messages = [{"role": "user", "content": "2 + 2?"}]
            for _ in range(2):
                answer = await managed.chat_completion(messages=messages)
                messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
                messages += [{"role": "user", "content": "Go on."}]
            (node,) = managed.get_state()["nodes"]
            made["tokens"].append(node.tokens)
            made["masks"].append(node.masked_tokens)
            made["inference_logprobs"].append(node.logprobs)
            made["overrides"].append({"certificate": dict(managed.certificate(node))})
    return made


@pytest.fixture
def check(tmp_path, capsys):
    """Run the command on a file that holds these groups: its status, output and errors."""

    def run(*groups, flags=("--tokenizer", "bytes")):
        recorder = GroupRecorder(tmp_path / "groups.jsonl")
        for each in groups:
            recorder.write(each)
        recorder.close()
        status = main([str(recorder.path), *flags])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


def put(value, *path):
    def apply(group):
        *holders, last = path
        for key in holders:
            group = group[key]
        group[last] = value

    return apply


ODD = [None, True, "text", 258.0, 2**63, -(2**63), -1, [], {}, [1], {"a": 1}]
PLACES = [
    *[(key,) for key in ("tokens", "masks", "inference_logprobs", "overrides", "scores", "messages")],
    *[(key, 0) for key in ("tokens", "masks", "inference_logprobs", "overrides", "scores")],
    *[(key, 0, 0) for key in ("tokens", "masks", "inference_logprobs")],
    *[(key, 0, -1) for key in ("tokens", "masks", "inference_logprobs")],
    ("overrides", 0, "certificate"),
    ("overrides", 0, "trainable"),
    *[("overrides", 0, "certificate", key) for key in Certificate.__annotations__],
]


@pytest.mark.parametrize("flags", [(), ("--tokenizer", "bytes"), ("--tokenizer", "bytes", "--show", "1:0")])
def test_whatever_stands_in_a_file_is_read_or_told(group, tmp_path, capsys, flags):
    file = tmp_path / "tampered.jsonl"
    for place, value in itertools.product(PLACES, ODD):
        tampered = copy.deepcopy(group)
        put(value, *place)(tampered)
        file.write_text(json.dumps(tampered))
        told = main([str(file), *flags]), capsys.readouterr()
        assert (told[0] == 2) == bool(told[1].err), (place, value)


@pytest.mark.parametrize("flags", [(), ("--tokenizer", "bytes"), ("--tokenizer", "bytes", "--strict")])
def test_groups_as_they_were_recorded_hold(group, check, flags):
    status, out, err = check(group, group, flags=flags)
    assert (status, err) == (0, "")
    assert "2 groups, 4 samples, 4 hold, 0 do not" in out


def sampled_position(group):
    return next(at for at, mask in enumerate(group["masks"][0]) if mask != -100)


def test_a_changed_id_is_found_and_shown_with_its_text(group, check):
    at = sampled_position(group)
    group["tokens"][0][at] = ord("X")
    status, out, _ = check(group)
    assert status == 1
    assert f"line 1, sample 0:\n  mask at position {at}: the mask is 73, but must be the id 88 or -100" in out
    (row,) = [line for line in out.splitlines() if line.startswith("    --> ")]
    assert row.split() == ["-->", str(at), "88", "73", "-0.250000", "'X'"]
    assert "4 samples" not in out
    assert "2 samples, 1 hold, 1 do not\n  mask: 1" in out


def test_an_id_that_was_changed_with_its_mask_breaks_the_digest(group, check):
    at = sampled_position(group)
    group["tokens"][0][at] = group["masks"][0][at] = ord("X")
    status, out, _ = check(group)
    assert status == 1
    assert "digest: ids, mask or logprobs were changed" in out


def test_an_id_of_the_context_that_was_changed_is_found_by_its_text(group, check):
    group["tokens"][0][10] = 0xFF  # no UTF-8, so no text is encoded like this
    status, out, _ = check(group)
    assert status == 1
    assert "digest: " in out
    assert "context at position 10: the context text is encoded as [239, 191, 189]" in out


def change(key, value):
    def apply(group):
        group[key][0][sampled_position(group)] = value

    return apply


def drop_last(key):
    return lambda group: group[key][0].pop()


def certify(name, value):
    return lambda group: group["overrides"][0]["certificate"].update({name: value})


def change_to_unknown_id(group):
    at = sampled_position(group)
    group["tokens"][0][at] = group["masks"][0][at] = 70_000


def mask_all(group):
    group["masks"][0][:] = [-100] * len(group["masks"][0])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (change("inference_logprobs", 0.5), "logprob"),
        (change("inference_logprobs", None), "logprob"),
        (change("masks", -100), "logprob"),
        (change("tokens", -1), "id"),
        (change("tokens", 70_000), "vocabulary"),
        (change("inference_logprobs", -0.26), "digest"),
        (change_to_unknown_id, "vocabulary"),
        (change("tokens", 2**63), "id"),
        (change("masks", 2**63), "mask"),
        (change("masks", 73.0), "mask"),
        (change("inference_logprobs", True), "logprob"),
        (put(True, "inference_logprobs", 0, 0), "logprob"),
        (put("signed", "overrides", 0, "certificate"), "certificate"),
        (put(["signed"], "overrides", 0, "certificate"), "certificate"),
        (certify("turns", "2"), "certificate: turns"),
        (lambda group: group["overrides"][0]["certificate"].pop("digest"), "certificate: digest"),
        (drop_last("tokens"), "misaligned"),
        (drop_last("inference_logprobs"), "misaligned"),
        (certify("sampled_tokens", 3), "sampled"),
        (certify("turns", 1), "turns"),
        (certify("template", "0" * 16), "template"),
        (mask_all, "nothing_sampled"),
        (lambda group: group.update(inference_logprobs=None), "digest"),
    ],
)
def test_each_kind_of_damage_has_a_reason(group, check, damage, reason):
    damage(group)
    status, out, err = check(group)
    assert (status, err) == (1, "")
    assert f"  {reason}" in out


def test_a_sample_without_certificate_is_counted_and_holds_unless_strict(group, check):
    group["overrides"] = None
    status, out, _ = check(group)
    assert (status, "2 carry no certificate" in out) == (0, True)
    status, out, _ = check(group, flags=("--strict",))
    assert (status, "uncertified: 2" in out) == (1, True)


def test_samples_marked_as_not_trainable_are_left_out(check):
    untrained = {"tokens": [[]], "masks": [[]], "scores": [1.0], "overrides": [{"trainable": False}]}
    status, out, _ = check(untrained)
    assert (status, "1 more are marked as not trainable" in out) == (0, True)


@pytest.mark.parametrize(("name", "why"), [("other", "chat template"), ("few", "outside the vocabulary of 100")])
def test_the_wrong_tokenizer_is_named_as_the_cause(group, check, name, why):
    status, out, err = check(group, flags=("--tokenizer", name))
    assert (status, out) == (2, "")
    assert err.startswith(f"check_tokens: --tokenizer {name} is not the tokenizer of this file")
    assert why in err


def test_a_tokenizer_that_does_not_exist_is_told_with_the_flag(tmp_path, capsys, monkeypatch):
    monkeypatch.undo()
    assert main([str(tmp_path / "no.jsonl"), "--tokenizer", str(tmp_path)]) == 2
    assert "set --tokenizer to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "holds no groups"),
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1: no scored group"),
        (json.dumps({"tokens": [[1]], "masks": []}), "not of one length"),
        (json.dumps({"tokens": [[1]], "masks": [[1], [1]]}), "1 tokens, 2 masks"),
        (json.dumps({"tokens": [[1]], "masks": [[1]], "scores": [1.0, 2.0]}), "1 tokens, 2 scores"),
        (json.dumps({"tokens": [[1]], "masks": [[1]], "scores": ["high"]}), "scores[0] is high"),
        (json.dumps({"tokens": [[1]], "masks": [[1]], "overrides": {"a": 1}}), "overrides is no list"),
        (json.dumps({"tokens": [[1]], "masks": [[1]], "overrides": ["a"]}), "overrides[0] is a"),
        (json.dumps({"tokens": [1], "masks": [[1]]}), "tokens[0] is 1"),
        (json.dumps({"tokens": [], "masks": [], "scores": []}), "a group without samples"),
    ],
)
def test_a_file_that_holds_no_groups_exits_with_2(tmp_path, capsys, content, told):
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    assert main([str(file)]) == 2
    assert told in capsys.readouterr().err
    assert main([str(tmp_path / "none.jsonl")]) == 2


def test_one_sample_can_be_shown_whole(group, check):
    status, out, _ = check(group, flags=("--tokenizer", "bytes", "--show", "1:1"))
    assert status == 0
    assert len(out.splitlines()) == len(group["tokens"][1]) + 1
    assert check(group, flags=("--show", "1:9"))[0] == 2
    assert check(group, flags=("--show", "first"))[0] == 2
