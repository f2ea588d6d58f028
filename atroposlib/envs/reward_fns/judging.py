"""How each reward of a tree comes to its judgement: in a worker process, in a thread, or on the event loop."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from atroposlib.envs.reward_fns.calls import Calls, Question
from atroposlib.envs.reward_fns.composite_reward import CompositeReward
from atroposlib.envs.reward_fns.recipes import judge, keywords_for, prepare_all, recipe_of
from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.envs.reward_fns.verdict import Verdict
from atroposlib.envs.reward_fns.workers.outcomes import Call, Done, Failed, Outcome
from atroposlib.envs.reward_fns.workers.pool import WorkerPool
from atroposlib.envs.reward_fns.workers.threads import DaemonThreads
from atroposlib.errors import RewardError

_LARGEST_PORTION: Final = 64
"""Questions sent to a worker together: enough that sending costs little, few enough that all cores have work."""
_threads: Final = DaemonThreads(32, "reward")
"""More than cores: a reward may wait in its thread, for a box that it uses without ``await``."""


@dataclass(frozen=True)
class Part:
    """What one reward said of one completion; ``parts`` where it is made of others.

    ``value`` is not weighted; ``why`` tells what was read from the answer and from the truth, where the reward says so.
    """

    name: str
    weight: float
    value: float
    why: str = ""
    seconds: float = 0.0
    parts: tuple[Part, ...] = ()


Judgement = Part | RewardError


@dataclass(frozen=True)
class Judges:
    """Asks rewards about ``calls``. ``waiting`` bounds how many calls of rewards that wait are under way."""

    calls: Calls
    pool: WorkerPool
    waiting: asyncio.Semaphore

    async def judgements(self, reward: RewardFunction) -> list[Judgement]:
        """One judgement per completion, of a reward and of all that it is made of."""
        leaves = {id(leaf): leaf for leaf in _leaves(reward)}
        questions = [question for leaf in leaves.values() for question in self.calls.questions(leaf)]
        in_pool = [each for each in questions if each.reward.cpu_bound and not _waits(each.reward)]
        waiting = [each for each in questions if _waits(each.reward)]
        at_once = [each for each in questions if not each.reward.cpu_bound and not _waits(each.reward)]
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(self._wait_for(each)) for each in waiting]
            portions = [group.create_task(self._ask_worker(portion)) for portion in self._portions(in_pool)]
            thread = group.create_task(_in_thread(at_once))
        answered = [*zip(waiting, (task.result() for task in answers), strict=True)]
        answered += [each for portion in portions for each in portion.result()]
        answered += thread.result()
        return self._assembled(reward, self._by_leaf(leaves, answered))

    # asking

    async def _wait_for(self, question: Question) -> Outcome:
        async with self.waiting:
            began = time.perf_counter()
            try:
                verdicts = await question.reward.averdicts(question.completions, **question.keywords)
            except RewardError as error:
                return Failed(str(error), error)
            return Done(verdicts, time.perf_counter() - began)

    def _portions(self, questions: Sequence[Question]) -> list[list[Question]]:
        """Questions about the same completions stay together, so that each completion is sent once."""
        in_order = sorted(questions, key=lambda question: question.indices[:1])
        size = max(1, min(_LARGEST_PORTION, len(questions) // (4 * self.pool.size)))
        return [in_order[start : start + size] for start in range(0, len(in_order), size)]

    async def _ask_worker(self, questions: Sequence[Question]) -> list[tuple[Question, Outcome]]:
        refused: list[tuple[Question, Outcome]] = []
        askable: list[Question] = []
        calls: list[Call] = []
        for question in questions:
            reward = question.reward
            try:
                recipe = recipe_of(reward)
            except RewardError as error:
                refused.append((question, Failed(str(error), error)))
                continue
            askable.append(question)
            limit_s = reward.time_limit_s * max(1, len(question.indices))
            calls.append(Call((recipe, question.completions, keywords_for(reward, question.keywords)), limit_s))
        if not calls:
            return refused
        recipes = tuple({call.args[0]: None for call in calls})
        try:
            outcomes = await self.pool.arun(judge, calls, setup=(prepare_all, recipes))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            outcomes = [Failed(f"its arguments cannot be sent to another process: {error}", error)] * len(calls)
        except OSError as error:
            outcomes = [Failed(f"no worker process can be started: {error}", error)] * len(calls)
        return [*refused, *zip(askable, outcomes, strict=True)]

    # assembling

    def _by_leaf(
        self, leaves: Iterable[int], answered: Sequence[tuple[Question, Outcome]]
    ) -> dict[int, list[Judgement]]:
        found: dict[int, dict[int, Judgement]] = {leaf: {} for leaf in leaves}
        for question, outcome in answered:
            found[id(question.reward)] |= self._judgements_of(question, outcome)
        return {leaf: [each for _, each in sorted(by_index.items())] for leaf, by_index in found.items()}

    def _judgements_of(self, question: Question, outcome: Outcome) -> dict[int, Judgement]:
        reward = question.reward
        if isinstance(outcome, Failed):
            return {i: self._error(reward, i, outcome) for i in question.indices}
        seconds = outcome.seconds / max(1, len(question.indices))
        pairs = zip(question.indices, outcome.value, strict=True)
        return {i: _part(reward, verdict, seconds) for i, verdict in pairs}

    def _error(self, reward: RewardFunction, index: int, failed: Failed) -> RewardError:
        item_id = self.calls.item_ids[index]
        reason = failed.reason.removeprefix(f"{reward.name} failed: ")
        where = f"item {item_id}, completion {index}" if item_id else f"completion {index}"
        named = RewardError(f"{reward.name}, {where}: {reason}", reward=reward.name, item_id=item_id)
        named.__cause__ = failed.cause
        return named

    def _assembled(self, reward: RewardFunction, judged: Mapping[int, list[Judgement]]) -> list[Judgement]:
        if not isinstance(reward, CompositeReward):
            _report(reward, judged[id(reward)])
            return judged[id(reward)]
        by_part = [self._assembled(each, judged) for each in reward.reward_functions]
        found: dict[int, Judgement] = {}
        complete: dict[int, list[Part]] = {}
        for index, parts in enumerate(zip(*by_part, strict=True)):
            error = next((each for each in parts if isinstance(each, RewardError)), None)
            if error is not None:
                found[index] = error
            else:
                complete[index] = [each for each in parts if isinstance(each, Part)]
        found |= self._combined(reward, complete)
        judgements = [found[index] for index in sorted(found)]
        _report(reward, judgements)
        return judgements

    def _combined(self, reward: CompositeReward, complete: Mapping[int, list[Part]]) -> dict[int, Judgement]:
        verdicts = [[Verdict(part.value, part.why) for part in parts] for parts in complete.values()]
        try:
            combined = reward.checked(verdicts, reward.combine(verdicts))
        except RewardError as error:
            return {index: self._error(reward, index, Failed(str(error), error)) for index in complete}
        made: dict[int, Judgement] = {}
        for (index, parts), verdict in zip(complete.items(), combined, strict=True):
            whole = _part(reward, verdict, sum(part.seconds for part in parts))
            made[index] = replace(whole, parts=tuple(parts))
        return made


async def _in_thread(questions: Sequence[Question]) -> list[tuple[Question, Outcome]]:
    """Rewards that are quick, one after the other."""
    if not questions:
        return []
    return await asyncio.wrap_future(_threads.submit(lambda: [(each, _ask(each)) for each in questions]))


def _ask(question: Question) -> Outcome:
    began = time.perf_counter()
    try:
        verdicts = question.reward.verdicts(question.completions, **question.keywords)
    except RewardError as error:
        return Failed(str(error), error)
    return Done(verdicts, time.perf_counter() - began)


def _part(reward: RewardFunction, verdict: Verdict, seconds: float) -> Part:
    return Part(reward.name, reward.weight, float(verdict), verdict.why, seconds)


def _report(reward: RewardFunction, judgements: Sequence[Judgement]) -> None:
    """Tell the metrics logger of the reward, if it has one."""
    reward.weighted([each.value for each in judgements if isinstance(each, Part)])


def _leaves(reward: RewardFunction) -> list[RewardFunction]:
    if isinstance(reward, CompositeReward):
        return [leaf for each in reward.reward_functions for leaf in _leaves(each)]
    return [reward]


def _waits(reward: RewardFunction) -> bool:
    return type(reward).acompute is not RewardFunction.acompute
