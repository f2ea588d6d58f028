"""Agents that are programs of their own, in real boxes, against a scripted engine."""

import asyncio
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.errors import ConfigError, EngineUnavailable, RolloutInvalid
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.tools.workspaces import _directory
from sandboxes import SandboxUnavailable, check_backend

BARE = """
import json, os, subprocess, sys, urllib.request

def ask(messages):
    body = json.dumps({"model": os.environ["AGENT_MODEL"], "messages": messages}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]

messages = [{"role": "user", "content": sys.stdin.read()}]
while True:
    message = ask(messages)
    if message["content"] == "done":
        break
    output = subprocess.run(message["content"], shell=True, capture_output=True, text=True).stdout
    messages += [message, {"role": "user", "content": "It said: " + output}]
"""
WITH_OPENAI = """
import os, subprocess, sys
import openai
client = openai.OpenAI()
messages = [{"role": "user", "content": sys.stdin.read()}]
tools = [{"type": "function", "function": {"name": "terminal", "parameters": {"type": "object", "properties": {}}}}]
while True:
    answer = client.chat.completions.create(model=os.environ["AGENT_MODEL"], messages=messages, tools=tools)
    message = answer.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        command = __import__("json").loads(call.function.arguments)["command"]
        output = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
"""
IN_JAVASCRIPT = """
const { OpenAI } = require("openai");
const { execSync } = require("child_process");
async function main() {
  const client = new OpenAI();
  const messages = [{ role: "user", content: require("fs").readFileSync(0, "utf8") }];
  const tools = [{ type: "function", function: { name: "terminal", parameters: { type: "object", properties: {} } } }];
  for (;;) {
    const stream = await client.chat.completions.create(
      { model: process.env.AGENT_MODEL, messages, tools, stream: true });
    const message = { role: "assistant", content: "", tool_calls: [] };
    for await (const chunk of stream) {
      const delta = chunk.choices[0]?.delta ?? {};
      message.content += delta.content ?? "";
      for (const { index, ...call } of delta.tool_calls ?? []) message.tool_calls.push(call);
    }
    if (!message.tool_calls.length) return;
    messages.push(message);
    for (const call of message.tool_calls) {
      const output = execSync(JSON.parse(call.function.arguments).command).toString();
      messages.push({ role: "tool", tool_call_id: call.id, content: output });
    }
  }
}
main();
"""
COMMAND = "cat given.txt > answer.txt"
CALL = {"tool_calls": [{"name": "terminal", "arguments": {"command": COMMAND}}]}
ITEM = {"word": "word1"}


class WritingEnv(HermesAgentBaseEnv):
    """The reward is whether the word that stands in a file stands in another one."""

    async def setup(self):
        self.items = [ITEM]

    async def get_next_item(self):
        return ITEM

    def format_prompt(self, item):
        return f"Write {item['word']} into answer.txt"

    async def prepare_box(self, item, ctx):
        ctx.write_file("given.txt", item["word"])

    async def compute_reward(self, item, result, ctx):
        self.result = result
        return 1.0 if ctx.terminal("cat answer.txt")["output"] == item["word"] else 0.0


def make(command, replies, **settings):
    """An environment whose agent is ``command`` and whose engine plays ``replies``."""
    engine = {name: settings.pop(name) for name in ("token_exact", "delay_s") if name in settings}
    server = ScriptedServer(replies, **engine)
    defaults = {"terminal_backend": "local", "use_wandb": False, "group_size": 2, "agent_timeout": 60}
    env = WritingEnv(WritingEnv.env_config_cls(agent_command=command, **defaults | settings), [server], testing=True)
    env.tokenizer = server.tokenizer
    env.engine = server
    return env


def python(program, interpreter="python3"):
    return f"{interpreter} -c {shlex.quote(program)}"


def by_turn(first, then="done"):
    return lambda request: first if "<|im_start|>assistant" not in request.text[:-30] else then


@pytest.fixture(autouse=True)
def no_box_is_left():
    yield
    assert _directory._open == {}


@pytest.mark.parametrize(
    "backend",
    [
        "local",
        pytest.param("bubblewrap", marks=pytest.mark.namespaces),
        pytest.param("docker", marks=pytest.mark.docker),
    ],
)
async def test_a_program_in_its_box_is_graded_and_recorded_token_by_token(backend):
    try:
        check_backend(backend)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    env = make(python(BARE), by_turn(COMMAND), terminal_backend=backend)
    group, _ = await env.collect_trajectories(ITEM)
    assert group["scores"] == [1.0, 1.0]
    for tokens, masks, logprobs, told in zip(
        group["tokens"], group["masks"], group["inference_logprobs"], group["overrides"], strict=True
    ):
        assert len(tokens) == len(masks) == len(logprobs)
        assert told["certificate"]["turns"] == 2
        said = env.engine.tokenizer.decode([number for number in masks if number != -100])
        assert said == f"{COMMAND}<|im_end|>done<|im_end|>"
    assert [message["role"] for message in env.result.messages] == ["user", "assistant", "user", "assistant"]
    assert env.result.final_response == "done"


async def test_the_server_of_a_rollout_comes_and_goes_without_a_word(caplog):
    caplog.set_level("INFO")
    env = make(python(BARE), by_turn(COMMAND))
    item, _ = await env.collect_trajectory(ITEM)
    assert item["scores"] == 1.0
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


async def test_openais_client_for_python_runs_unchanged():
    env = make(python(WITH_OPENAI, shlex.quote(sys.executable)), by_turn(CALL), agent_temperature=0.5)
    item, _ = await env.collect_trajectory(ITEM)
    assert item["scores"] == 1.0
    assert [request.arguments["temperature"] for request in env.engine.requests] == [0.5, 0.5]


@pytest.fixture(scope="module")
def javascript_client(tmp_path_factory):
    """The folder of node modules that holds OpenAI's client; skipped where it cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("javascript")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "openai"]
    try:
        subprocess.run(install, check=True, capture_output=True, timeout=90)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm cannot install openai: {error}")
    return Path(folder) / "node_modules"


@pytest.mark.parametrize("delay_s", [0.0, 0.5])
async def test_openais_client_for_javascript_runs_unchanged(javascript_client, monkeypatch, delay_s):
    monkeypatch.setattr("atroposlib.envs.server_handling.capture_stream.WAITING_EVERY_S", 0.05)
    command = f"NODE_PATH={javascript_client} node -e {shlex.quote(IN_JAVASCRIPT)}"
    env = make(command, by_turn(CALL), delay_s=delay_s)
    item, _ = await env.collect_trajectory(ITEM)
    assert item["scores"] == 1.0
    assert item["overrides"]["certificate"]["turns"] == 2


async def test_openais_client_for_javascript_raises_what_fails_in_its_stream(javascript_client, tmp_path):
    caught = IN_JAVASCRIPT.replace("main();", "main().catch((error) => console.log(error.code));")
    command = f"NODE_PATH={javascript_client} node -e {shlex.quote(caught)} > {tmp_path}/told"
    env = make(command, lambda request: EngineUnavailable("it burns"), delay_s=0.5)
    with pytest.raises(RolloutInvalid, match="engine_error: EngineUnavailable: it burns"):
        await env.collect_trajectory(ITEM)
    assert (tmp_path / "told").read_text() == "engine_unavailable\n"


async def test_a_program_that_asks_nothing_is_no_rollout():
    env = make("echo I do not know how; exit 3", ["done"])
    with pytest.raises(RolloutInvalid, match="ended with 3: I do not know how"):
        await env.collect_trajectory(ITEM)


async def test_a_program_that_swallows_a_failure_of_the_engine_is_no_rollout():
    swallowing = BARE.replace(
        "    message = ask(messages)\n", "    try: message = ask(messages)\n    except OSError: break\n"
    )
    env = make(python(swallowing), [COMMAND, EngineUnavailable("it burns")])
    with pytest.raises(RolloutInvalid, match="engine_error: EngineUnavailable: it burns"):
        await env.collect_trajectory(ITEM)


async def test_a_record_that_is_refused_is_counted_by_its_reason_with_a_program_too():
    env = make(python(BARE), [{"content": "ls", "logprobs": [0.5, 0.5]}])
    with pytest.raises(RolloutInvalid) as refused:
        await env.collect_trajectory(ITEM)
    assert refused.value.reason == "logprobs_misaligned"


GOING_ON = BARE.split("messages = ")[0] + (
    "for text in ('one', 'two'):\n    try: ask([{'role': 'user', 'content': text}])\n    except OSError: pass\n"
)
DOWN = EngineUnavailable("the engine is down")
WITHOUT_LOGPROB = {"token_ids": [65], "logprobs": [None]}


@pytest.mark.parametrize(
    ("replies", "reason", "says"),
    [
        ([DOWN, WITHOUT_LOGPROB], "engine_error", "EngineUnavailable: the engine is down"),
        ([WITHOUT_LOGPROB, DOWN], "logprob_missing", "the engine gave no logprob for"),
    ],
)
async def test_of_several_failures_the_one_that_is_told_is_the_one_that_is_counted(replies, reason, says):
    with pytest.raises(RolloutInvalid) as refused:
        await make(python(GOING_ON), replies).collect_trajectory(ITEM)
    assert refused.value.reason == reason
    assert refused.value.detail.startswith(says)


async def test_a_program_gets_as_many_turns_as_the_loop_would():
    env = make(python(BARE), lambda request: "echo again", max_agent_turns=3)
    item, _ = await env.collect_trajectory(ITEM)
    assert (item["scores"], env.result.turns_used, env.result.stop_reason) == (0.0, 3, "max_turns")


async def test_a_program_that_does_not_end_is_ended_and_graded():
    env = make(python(BARE) + "; sleep 100", by_turn(COMMAND), agent_timeout=3)
    item, _ = await env.collect_trajectory(ITEM)
    assert (item["scores"], env.result.stop_reason) == (1.0, "max_turns")
    assert "did not end within 3 s" in env.result.error


async def test_a_program_knows_its_task_and_nothing_else_of_the_environment():
    show = "env | grep -E '^(AGENT|OPENAI)' | sort > told.txt; "
    env = make(show + python(BARE), by_turn(COMMAND), system_prompt="Be brief.")
    told = {}

    async def look(item, result, ctx):
        told.update(line.split("=", 1) for line in ctx.terminal("cat told.txt")["output"].splitlines())
        return 1.0

    env.compute_reward = look
    await env.collect_trajectory(ITEM)
    assert told["AGENT_PROMPT"] == "Write word1 into answer.txt"
    assert told["AGENT_SYSTEM_PROMPT"] == "Be brief."
    assert told["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    assert told.keys() == {
        *("AGENT_MODEL", "AGENT_PROMPT", "AGENT_SYSTEM_PROMPT"),
        *("OPENAI_API_BASE", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    }


TELL = 'cat > input; echo -n "$AGENT_PROMPT" > prompt; echo -n "$AGENT_SYSTEM_PROMPT" > system; '
PARTS = [{"type": "text", "text": "Write "}, {"type": "text", "text": "it"}]
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]


@pytest.mark.parametrize(
    ("system", "prompt", "told"),
    [
        ("halved \ud800", "broken \ud800 text", ["broken ? text", "broken ? text", "halved ?"]),
        (None, PARTS, ["Write it", "Write it", ""]),
        (PARTS, None, ["", "", "Write it"]),
    ],
)
async def test_a_program_is_told_the_text_of_its_messages(system, prompt, told):
    env = make(TELL + python(BARE), lambda request: "done")
    env._first_messages = lambda item: [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    seen = []

    async def look(item, result, ctx):
        seen.extend(ctx.terminal(f"cat {name}")["output"] for name in ("input", "prompt", "system"))
        return 1.0

    env.compute_reward = look
    await env.collect_trajectory(ITEM)
    assert seen == told


async def test_a_prompt_that_is_not_text_is_refused_by_name():
    env = make(python(BARE), ["done"])
    env.format_prompt = lambda item: IMAGE
    with pytest.raises(RolloutInvalid, match="image_content: message 0 holds a part of type 'image_url'"):
        await env.collect_trajectory(ITEM)


async def test_a_program_can_open_no_other_session():
    spying = BARE + (
        "root = os.environ['OPENAI_BASE_URL'].split('/')[2]\n"
        "for path in ('/sessions/create', '/sessions'):\n"
        "    request = urllib.request.Request(f'http://{root}{path}', b'{}' if 'create' in path else None)\n"
        "    try: urllib.request.urlopen(request); open('got', 'w')\n"
        "    except urllib.error.HTTPError as error: print(error.code, file=open('refused', 'a'))\n"
    )
    env = make(python(spying), by_turn(COMMAND))
    seen = {}

    async def look(item, result, ctx):
        seen["files"] = ctx.terminal("ls; cat refused")["output"].split()
        return 1.0

    env.compute_reward = look
    await env.collect_trajectory(ITEM)
    assert "got" not in seen["files"]
    assert seen["files"][-2:] == ["401", "401"]


async def test_an_engine_that_tells_no_tokens_is_refused_with_the_setting():
    with pytest.raises(ConfigError, match=r"--env\.agent_command"):
        await make(python(BARE), ["done"], token_exact=False).collect_trajectory(ITEM)


async def test_a_cancelled_rollout_leaves_no_box_and_no_endpoint():
    env = make(python(BARE), lambda request: "sleep 100")
    playing = asyncio.create_task(env.collect_trajectory(ITEM))
    while not env.engine.requests:
        await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    others = [task for task in asyncio.all_tasks() if task.get_name() in ("agent endpoint", "sandbox channel")]
    assert others == []
    assert json.dumps(list(_directory._open)) == "[]"
