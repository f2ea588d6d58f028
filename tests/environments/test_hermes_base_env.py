"""Environments of tool-using agents, played against a scripted engine in real boxes."""

import asyncio
from collections import Counter

import pytest

from atroposlib.errors import ConfigError, EngineUnavailable, RolloutInvalid
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.tools.registry import _tools
from environments.tools.workspaces import _directory
from tests.environments.scripted_env import ITEM, SOLVE, CountingEnv, by_turn, call, is_first_turn, make

pytestmark = pytest.mark.usefixtures("no_box_is_left")


async def test_a_setup_without_async_is_a_setup():
    class Plain(CountingEnv):
        def setup(self):
            self.items = [ITEM]

    env = make(*SOLVE, cls=Plain)
    await env.setup()
    assert env.items == [ITEM]


def test_a_forgotten_engine_is_asked_for_before_the_first_rollout(capsys, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        CountingEnv.cli(["process", "--env.total_steps", "1", "--env.use_wandb", "false"])
    assert ended.value.code == 2
    assert "say where it is: --openai.base_url URL" in capsys.readouterr().err
    assert "failed" not in caplog.text


async def test_a_group_is_played_graded_and_recorded_token_by_token():
    env = make(by_turn(SOLVE[0]))
    group, backlog = await env.collect_trajectories(ITEM)
    assert backlog == []
    assert group["scores"] == [1.0, 1.0]
    for tokens, masks, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert len(tokens) == len(masks) == len(logprobs)
        assert {lp for lp, mask in zip(logprobs, masks, strict=True) if mask == -100} == {1.0}
        trained = bytes(t for t, m in zip(tokens, masks, strict=True) if m != -100 and t < 256).decode()
        assert "cat given.txt" in trained
        assert "done" in trained
        assert "Write word1" not in trained
    assert len({override["rollout_id"] for override in group["overrides"]}) == 2
    assert all(override["certificate"]["turns"] == 2 for override in group["overrides"])
    assert [m["role"] for m in group["messages"][0]] == ["user", "assistant", "tool", "assistant"]


async def test_each_rollout_has_a_box_of_its_own():
    replies = iter(["touch mine", "ls"] * 10)

    def script(request):
        return call(next(replies)) if is_first_turn(request) else "done"

    class Env(CountingEnv):
        async def compute_reward(self, item, result, ctx):
            self.listings.append(ctx.terminal("ls")["output"].split())
            return float(len(self.listings))

    env = make(script, cls=Env)
    env.listings = []
    await env.collect_trajectories(ITEM)
    assert sorted(env.listings) == [["given.txt"], ["given.txt", "mine"]]


async def test_without_token_ids_a_group_says_that_it_is_not_trainable():
    env = make(by_turn(SOLVE[0]), token_exact=False)
    group, _ = await env.collect_trajectories(ITEM)
    assert group["scores"] == [1.0, 1.0]
    assert [override["trainable"] for override in group["overrides"]] == [False, False]
    assert group["tokens"] == [[], []]


async def test_a_rollout_without_a_tool_call_is_graded_all_the_same():
    env = make(lambda _: "I would rather not")
    group, _ = await env.collect_trajectories(ITEM)
    assert group["scores"] == [0.0, 0.0]


async def test_an_engine_failure_is_retried_and_never_a_score():
    failures = iter([EngineUnavailable("down"), EngineUnavailable("down")])
    env = make(lambda request: next(failures, None) or by_turn(SOLVE[0])(request))
    group, _ = await env.collect_trajectories(ITEM)
    assert group["scores"] == [1.0, 1.0]
    assert env.rollout_failures == Counter(engine_error=2)


QUIETLY = ("--env.use_wandb", "false", "--env.terminal_backend", "local")


def refuse_tool_results(env):
    template = env.tokenizer.chat_template
    env.tokenizer.chat_template = template.replace("{%- for message in messages %}", REFUSING, 1)


REFUSING = "{%- if messages[-1].role == 'tool' %}{{ messages.of.tools }}{%- endif %}{%- for message in messages %}"
BROKEN = {"content": "I would say", "finish_reason": "error"}
MISALIGNED = {"token_ids": [72, 105, 258], "logprobs": [-0.5, -0.5]}
UNKNOWN_ID = {"token_ids": [72, 70_000, 258], "logprobs": [-0.5, -0.5, -0.5]}


@pytest.mark.parametrize(
    ("reply", "prepare", "reason", "says"),
    [
        (MISALIGNED, lambda env: None, "logprobs_misaligned", "3 ids and gave 2 logprobs"),
        (UNKNOWN_ID, lambda env: None, "id_outside_vocabulary", "sampled id 1 is 70000"),
        (call("ls"), refuse_tool_results, "chat_template", "cannot render messages of the roles"),
    ],
)
async def test_a_record_that_is_refused_is_counted_under_its_own_reason(reply, prepare, reason, says, caplog):
    env = make(by_turn(reply))
    prepare(env)
    assert await env.collect_trajectories(ITEM) == (None, [])
    assert env.rollout_failures == Counter({reason: 6})
    first = next(each.message for each in caplog.records if "failed" in each.message)
    assert first.startswith(f"a rollout failed ({reason}): ")
    assert first.count(f"{reason}: ") == 0
    assert says in first
    assert says in env.rollout_failures.last


@pytest.mark.parametrize("token_exact", [True, False])
async def test_an_answer_that_the_engine_broke_off_is_no_sample(token_exact):
    env = make(by_turn(BROKEN), token_exact=token_exact)
    assert await env.collect_trajectories(ITEM) == (None, [])
    assert env.rollout_failures == Counter(engine_error=6)
    with pytest.raises(RolloutInvalid, match=r"broke off its answer \(finish_reason 'error'\)"):
        await env.collect_trajectory(ITEM)


@pytest.mark.parametrize("method", ["format_prompt", "compute_reward"])
async def test_a_method_that_is_not_defined_ends_the_run(method):
    env = make(by_turn(SOLVE[0]), cls=type("Bare", (CountingEnv,), {method: getattr(HermesAgentBaseEnv, method)}))
    with pytest.raises(ConfigError, match=f"Bare must define {method}"):
        await env.collect_trajectories(ITEM)


def forgotten(self, item):
    pass


async def awaited(self, item):
    return "Write"


@pytest.mark.parametrize(
    ("format_prompt", "returned"),
    [
        (lambda self, item: [{"role": "user", "content": "Write"}], "a list of messages"),
        (lambda self, item: item, "a value of type dict"),
        (lambda self, item: [], "a value of type list"),
        (forgotten, "None"),
        (awaited, "a coroutine, since it is written with `async`"),
    ],
)
@pytest.mark.parametrize("mode", ["process", "evaluate"])
def test_a_prompt_that_is_no_text_ends_the_run(mode, format_prompt, returned, capsys, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        type("Odd", (CountingEnv,), {"format_prompt": format_prompt}).cli([mode, "--testing", *QUIETLY])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"Odd.format_prompt() returned {returned}; it must return text" in said
    assert "Traceback" not in said + caplog.text


async def test_a_prompt_in_parts_is_sent_as_it_is():
    parts = [{"type": "text", "text": "Write"}]
    env = make(by_turn(SOLVE[0]), cls=type("Parts", (CountingEnv,), {"format_prompt": lambda self, item: parts}))
    group, _ = await env.collect_trajectories(ITEM)
    assert group["messages"][0][0]["content"] in ("Write", parts)


async def test_a_reward_function_that_raises_makes_the_rollout_invalid():
    class Env(CountingEnv):
        async def compute_reward(self, item, result, ctx):
            raise KeyError("exit_code")

    env = make(by_turn(SOLVE[0]), cls=Env)
    assert await env.collect_trajectories(ITEM) == (None, [])
    assert env.rollout_failures == Counter(reward_error=6)
    with pytest.raises(RolloutInvalid, match="KeyError: 'exit_code'"):
        await env.collect_trajectory(ITEM)


async def test_a_box_that_cannot_be_had_for_the_grade_is_not_the_fault_of_the_reward_function():
    env = make("nothing to do", sandbox_network=["pypi.org"])
    with pytest.raises(RolloutInvalid, match="sandbox_error: SandboxUnavailable: a local sandbox cannot be held"):
        await env.collect_trajectory(ITEM)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "high"])
async def test_what_is_no_finite_number_is_no_reward(reward):
    class Env(CountingEnv):
        async def compute_reward(self, item, result, ctx):
            return reward

    with pytest.raises(RolloutInvalid, match="reward_error"):
        await make("hi", cls=Env).collect_trajectory(ITEM)


async def test_a_box_that_cannot_be_prepared_makes_the_rollout_invalid():
    class Env(CountingEnv):
        async def prepare_box(self, item, ctx):
            ctx.write_file("given.txt", item["no such key"])

    with pytest.raises(RolloutInvalid, match=r"sandbox_error.*KeyError"):
        await make(*SOLVE, cls=Env).collect_trajectory(ITEM)


async def test_group_rewards_see_all_boxes_open():
    class Env(CountingEnv):
        async def compute_group_rewards(self, item, results, ctxs):
            sizes = [len(ctx.terminal("cat answer.txt")["output"]) for ctx in ctxs]
            return [size / max(sizes) for size in sizes]

    words = iter([call("echo -n a > answer.txt"), call("echo -n aaaa > answer.txt")])
    env = make(lambda r: next(words) if is_first_turn(r) else "done", cls=Env)
    group, _ = await env.collect_trajectories(ITEM)
    assert sorted(group["scores"]) == [0.25, 1.0]


async def test_the_default_group_rewards_are_those_of_the_members():
    class Env(CountingEnv):
        async def compute_group_rewards(self, item, results, ctxs):
            return [2 * reward for reward in await super().compute_group_rewards(item, results, ctxs)]

    group, _ = await make(by_turn(SOLVE[0]), cls=Env).collect_trajectories(ITEM)
    assert group["scores"] == [2.0, 2.0]


async def test_group_rewards_of_the_wrong_number_are_invalid():
    class Env(CountingEnv):
        async def compute_group_rewards(self, item, results, ctxs):
            return [1.0]

    with pytest.raises(RolloutInvalid, match="1 rewards for 2 rollouts"):
        await make(lambda _: "hi", cls=Env).collect_trajectories(ITEM)


async def test_a_member_without_tokens_is_tried_again_before_the_group_is_graded_together():
    graded = []

    class Env(CountingEnv):
        async def compute_group_rewards(self, item, results, ctxs):
            graded.extend(result.final_response for result in results)
            return [1.0 for _ in results]

    replies = iter([{"token_ids": [], "logprobs": [], "finish_reason": "length"}])
    env = make(lambda _: next(replies, "done"), cls=Env, group_size=3)
    group, _ = await env.collect_trajectories(ITEM)
    assert group["scores"] == [1.0, 1.0, 1.0]
    assert graded == ["done", "done", "done"]
    assert env.rollout_failures == Counter(no_tokens=1)


async def test_groups_that_run_at_once_keep_the_tools_they_were_given():
    env = make(lambda _: "hi", enabled_toolsets=None, distribution="balanced", seed=3, token_exact=False)
    groups = await asyncio.gather(*(env.collect_trajectories({"word": str(n)}) for n in range(12)))
    assert all(groups)
    offered = {}
    for request in env.engine.requests:
        prompt = request.messages[-1]["content"]
        tools = tuple(sorted(tool["function"]["name"] for tool in request.arguments.get("tools", ())))
        offered.setdefault(prompt, set()).add(tools)
    assert len(offered) == 12
    assert all(len(tools) == 1 for tools in offered.values())
    again = make("hi", enabled_toolsets=None, distribution="balanced", seed=3)
    draws = Counter(tuple(sorted(again._resolve_tools_for_group()[1])) for _ in range(12))
    assert Counter(next(iter(tools)) for tools in offered.values()) == draws
    assert len(draws) > 1


async def test_cancelling_a_group_closes_its_boxes(backend):
    started = asyncio.Event()

    class Env(CountingEnv):
        async def compute_reward(self, item, result, ctx):
            ctx.terminal("true")
            started.set()
            return float(ctx.terminal("sleep 60")["exit_code"])

    env = make(by_turn(SOLVE[0]), cls=Env, terminal_backend=backend)
    task = asyncio.create_task(env.collect_trajectories(ITEM))
    await started.wait()
    boxes = [await workspace.box() for workspace in _directory.of_loop(asyncio.get_running_loop())]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert boxes
    assert all(box.closed for box in boxes)


async def test_a_rollout_may_not_outlive_the_life_of_its_box():
    env = make(*[call("sleep 60")] * 3, terminal_lifetime=1)
    with pytest.raises(RolloutInvalid, match="terminal_lifetime"):
        await env.collect_trajectory(ITEM)


async def test_a_fresh_box_gets_only_the_artefacts():
    class Env(CountingEnv):
        async def compute_reward(self, item, result, ctx):
            self.seen = ctx.terminal("cat answer.txt; ls /workspace/out; test -e stray || echo clean")["output"]
            return 1.0

    script = call("echo -n yes > answer.txt; mkdir out; touch out/a stray")
    env = make(script, "done", cls=Env, grade_in="fresh", artefacts=["answer.txt", "/workspace/out", "never made"])
    await env.collect_trajectory(ITEM)
    assert env.seen == "yesa\nclean\n"


def make_forking(replies, **settings):
    """An environment whose template drops what the model thought before its tool call."""
    env = make(replies, **settings)
    begins_assistant = "{%- elif message.role == 'assistant' %}"
    drops_thoughts = "{%- set message = dict(message, content=message.content.split('</think>')[-1]) %}"
    template = env.tokenizer.chat_template
    env.tokenizer.chat_template = template.replace(begins_assistant, begins_assistant + drops_thoughts)
    return env


THINKING = {"reasoning_content": "hm", **SOLVE[0]}


async def test_a_history_that_changes_gives_several_sequences_of_one_rollout():
    env = make_forking(by_turn(THINKING))
    group, _ = await env.collect_trajectories(ITEM)
    assert group["scores"] == [1.0] * 4
    assert sorted(Counter(override["rollout_id"] for override in group["overrides"]).values()) == [2, 2]


def trained_texts(group):
    rows = zip(group["tokens"], group["masks"], strict=True)
    return [bytes(t for t, m in zip(*row, strict=True) if m != -100 and t < 256).decode() for row in rows]


@pytest.mark.parametrize("policy", ["longest", "exact"])
@pytest.mark.parametrize(("last", "kept"), [("done", "cat given.txt"), ("done " * 100, "done done")])
async def test_of_each_rollout_only_the_sequence_is_sent_in_which_most_was_sampled(policy, last, kept):
    env = make_forking(by_turn(THINKING, last), uneven_groups=policy)
    group, _ = await env.collect_trajectories(ITEM)
    assert group["scores"] == [1.0, 1.0]
    assert len({override["rollout_id"] for override in group["overrides"]}) == 2
    assert [kept in text for text in trained_texts(group)] == [True, True]
    assert env._statistics.broken_histories == 2


@pytest.mark.parametrize(("policy", "members"), [("all", 2), ("longest", 2), ("exact", None)])
async def test_a_group_with_a_rollout_left_out_goes_short_unless_groups_have_to_be_exact(policy, members):
    class Env(CountingEnv):
        async def compute_group_rewards(self, item, results, ctxs):
            return [1.0, None, 0.5]

    env = make(by_turn(SOLVE[0]), cls=Env, group_size=3, uneven_groups=policy)
    group, _ = await env.collect_trajectories(ITEM)
    assert (group and len(group["scores"])) == members
    assert env.dropped_groups == (Counter() if members else {"fewer than group_size rollouts": 1})


# -- what is told


async def test_metrics_tell_of_rollouts_once():
    logged = []

    class Tracker:
        def log(self, metrics, step):
            logged.append(metrics)

        def finish(self):
            pass

    env = make(by_turn({"tool_calls": [{"name": "terminal", "arguments": "{broken"}]}))
    env.tracker = Tracker()
    await env.collect_trajectories(ITEM)
    await env.wandb_log()
    await env.wandb_log()
    first, second = logged
    assert first["train/tool_errors_count"] == 2
    assert "not valid JSON" in first["train/tool_error_details"]
    assert first["train/mean_reward"] == 0.0
    assert first["train/turns_mean"] == 2.0
    assert second["train/tool_errors_count"] == 0
    assert "train/mean_reward" not in second


async def test_a_judge_scores_and_an_answer_that_is_no_score_is_an_error():
    class Env(CountingEnv):
        async def compute_reward(self, item, result, ctx):
            return await self._llm_judge(item, result.final_response)

    def script(request):
        if request.kind != "chat":
            return "my answer"
        assert "word1" in request.text
        return verdicts.pop(0)

    verdicts = ['{"score": 0.7}', "no idea", "0.2", "no", "idea"]
    env = make(script, cls=Env)
    assert (await env.collect_trajectory(ITEM))[0]["scores"] == 0.7
    assert (await env.collect_trajectory(ITEM))[0]["scores"] == 0.2
    with pytest.raises(RolloutInvalid, match="RewardError: the judge gave no score"):
        await env.collect_trajectory(ITEM)


def test_a_tool_of_ones_own_that_needs_no_box_needs_no_backend(monkeypatch):
    from environments.tools import Tool, parameters, register_toolset
    from environments.tools.toolsets import _toolsets

    async def run(call, arguments):
        return "ok"

    monkeypatch.setitem(_tools, "oracle", Tool("oracle", "Ask.", parameters(), run, needs_box=False))
    monkeypatch.setitem(_toolsets, "oracles", ())
    register_toolset("oracles", ["oracle"])
    assert not make("hi", enabled_toolsets=["oracles"])._tools_need_boxes
