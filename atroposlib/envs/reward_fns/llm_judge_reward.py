"""The judgement of another model."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from atroposlib.envs.reward_fns.answers.truth import accepted_answers
from atroposlib.envs.reward_fns.llm_judge.framing import DEFAULT_TEMPLATE, Letter, letter_to_judge, score_in
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, after_thoughts
from atroposlib.envs.reward_fns.verdict import Verdict, quoted
from atroposlib.errors import RewardError


class Judge(Protocol):
    """What is asked: a ``ServerManager``, an ``APIServer``, or anything else with this method."""

    async def chat_completion(self, **kwargs: Any) -> Any:
        """Complete a chat, as in OpenAI's API."""


@registry.register
class LlmJudgeReward(RewardFunction):
    """(score - ``min_score``) / (``max_score`` - ``min_score``) of a model that grades by ``rubric``.

    The judge is the ``judge`` of the call, or the engine that ``server`` describes (``base_url``, ``model_name``,
    ``api_key_env`` and whatever else an entry of ``server_configs`` may say). It sees the rubric, the question
    (``question_field`` of the item), the right answer if there is one (unless ``show_truth`` is off) and what follows
    the last ``</think>`` (all of it if ``split_on_think_tag`` is off), framed so that none of it passes for
    instructions. ``template`` replaces the whole letter: Jinja, with ``rubric, question, truth, answer, begin, end,
    key, min_score, max_score``. An answer without a score is asked for again, ``retries`` times, then it is an error.
    The last ``cache_size`` judgements are kept.

    Range: 0 to 1. Source: LLM-as-a-judge, single-answer grading (arXiv 2306.05685).
    """

    independent = True

    def __init__(
        self,
        rubric: str = "Is the answer right, complete and to the point?",
        min_score: float = 0.0,
        max_score: float = 10.0,
        server: Mapping[str, Any] | None = None,
        template: str = DEFAULT_TEMPLATE,
        question_field: str | None = None,
        show_truth: bool = True,
        split_on_think_tag: bool = True,
        retries: int = 2,
        temperature: float = 0.0,
        max_tokens: int = 1024,
        cache_size: int = 4096,
        extra_body: Mapping[str, Any] | None = None,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        if min_score >= max_score:
            raise ValueError(f"min_score {min_score:g} must be below max_score {max_score:g}")
        self.rubric = rubric
        self.min_score = min_score
        self.max_score = max_score
        self.template = _compiled(template)
        self.question_field = question_field
        self.show_truth = show_truth
        self.split_on_think_tag = split_on_think_tag
        self.retries = max(0, retries)
        self.request: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
        if extra_body:
            self.request["extra_body"] = dict(extra_body)
        self.cache_size = cache_size
        self._cache: OrderedDict[tuple[Judge, str], Verdict] = OrderedDict()
        self._server = None if server is None else _server_config(server)
        self._own_judge: Any = None

    @property
    def needs_answer(self) -> bool:
        """The judge is shown one where there is one."""
        return False

    async def acompute(
        self,
        completions: Sequence[Any],
        solution: Any = None,
        ground_truth: Any = None,
        item: Any = None,
        judge: Judge | None = None,
        **_: Any,
    ) -> list[Verdict]:
        """Ask about each completion. Raises: RewardError where there is no judge, or it gives no score."""
        asked = judge or self._engine()
        letters = [
            self._letter(completion, index, item, ground_truth if ground_truth is not None else solution)
            for index, completion in enumerate(completions)
        ]
        return list(await asyncio.gather(*(self._judgement(asked, letter) for letter in letters)))

    async def aclose(self) -> None:
        """Close the connections to its own engine; a later call opens new ones."""
        if self._own_judge is not None:
            await self._own_judge.close()

    def _letter(self, completion: Any, index: int, items: Any, gold: Any) -> Letter:
        text = self.get_content(completion)
        item = items[index] if isinstance(items, list) else items
        truths = gold[index] if isinstance(gold, list) else gold
        return letter_to_judge(
            self.template,
            rubric=self.rubric,
            answer=(after_thoughts(text) if self.split_on_think_tag else text).strip(),
            question=self._question(item),
            truth="\nor: ".join(accepted_answers(truths)) if self.show_truth and truths is not None else "",
            min_score=self.min_score,
            max_score=self.max_score,
        )

    def _question(self, item: Any) -> str:
        if self.question_field is None:
            return ""
        if not isinstance(item, Mapping) or self.question_field not in item:
            raise RewardError(f"llm_judge: the item has no field {self.question_field!r}")
        return str(item[self.question_field])

    async def _judgement(self, judge: Judge, letter: Letter) -> Verdict:
        known = self._cache.get((judge, letter.text))
        if known is not None:
            self._cache.move_to_end((judge, letter.text))
            return known
        said = ""
        for attempt in range(self.retries + 1):
            # the same request at temperature 0 would be answered in the same way
            request = {**self.request, "temperature": max(self.request["temperature"], 0.5 if attempt else 0.0)}
            answer = await judge.chat_completion(messages=[{"role": "user", "content": letter.text}], n=1, **request)
            said = answer.choices[0].message.content or ""
            score = score_in(said, letter, self.min_score, self.max_score)
            if score is not None:
                return self._remember((judge, letter.text), self._verdict(score, said, letter))
        raise RewardError(
            f"the judge gave no score from {self.min_score:g} to {self.max_score:g} in {self.retries + 1} answers; the "
            f"last was {quoted(said, 200)}"
        )

    def _verdict(self, score: float, said: str, letter: Letter) -> Verdict:
        reasons = said.partition(letter.key)[0].strip()
        reward = (score - self.min_score) / (self.max_score - self.min_score)
        return Verdict(reward, f"{score:g} of {self.max_score:g}: {quoted(reasons, 300)}")

    def _remember(self, key: tuple[Judge, str], verdict: Verdict) -> Verdict:
        self._cache[key] = verdict
        while len(self._cache) > self.cache_size:
            self._cache.popitem(last=False)
        return verdict

    def _engine(self) -> Judge:
        if self._server is None:
            raise RewardError("llm_judge needs a judge: set its parameter server, with base_url and model_name")
        if self._own_judge is None:
            from atroposlib.envs.server_handling.server_manager import ServerManager

            self._own_judge = ServerManager([self._server])
        own: Judge = self._own_judge
        return own


def _compiled(template: str) -> Any:
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    try:
        # an undefined name is an error; the judged texts are values, and are never rendered themselves
        return SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True).from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"template: {error}") from error


def _server_config(server: Mapping[str, Any]) -> Any:
    from pydantic import ValidationError

    from atroposlib.envs.server_handling.server_baseline import APIServerConfig

    unknown = [name for name in server if name not in APIServerConfig.model_fields]
    if unknown:
        raise ValueError(f"server has {unknown[0]!r}; there are {', '.join(APIServerConfig.model_fields)}")
    try:
        config = APIServerConfig(**{"health_check": False, **server})
    except ValidationError as error:
        raise ValueError(f"server: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error
    if not config.base_url:
        raise ValueError("server needs a base_url, such as http://localhost:9002/v1")
    return config
