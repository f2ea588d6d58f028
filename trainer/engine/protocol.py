"""What the engine's routes accept: the fields of vLLM's requests that it honours.

A field that would change what is sampled and is not honoured is refused unless it says what happens anyway, because
an ignored one would quietly make the samples others than the caller believes. Fields that change nothing are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from trainer.engine.sampling import SamplingParams

MAX_CHOICES = 128
_MAX_TOP = 20

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "chat_template": (None,),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "logit_bias": (None, {}),
    "logprob_token_ids": (None,),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "presence_penalty": (None, 0),
    "prompt_embeds": (None,),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "stream": (None, False),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
}
"""Fields this engine does not implement, and the values that ask for nothing."""

TokenIds = list[Annotated[int, Field(ge=0)]]


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: Annotated[int, Field(ge=0, le=_MAX_TOP)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @model_validator(mode="after")
    def _refuse_what_is_not_honoured(self) -> _Request:
        for name, value in (self.model_extra or {}).items():
            if name in _NEUTRAL and value not in _NEUTRAL[name]:
                raise ValueError(f"{name}={value!r} is not supported by the embedded engine; leave it out or use vLLM")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in stops if stop)

    def params(self, *, max_tokens: int, top_logprobs: int, choice: int, skip_special_tokens: bool) -> SamplingParams:
        """Sampling of one choice; with a seed, each choice has luck of its own."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            seed=None if self.seed is None else (self.seed + choice) % 2**63,
            stop=self.stops,
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=skip_special_tokens,
            top_logprobs=top_logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )


class CompletionRequest(_Request):
    """``POST /v1/completions``: prompts as text or as token ids, one or several."""

    prompt: str | TokenIds | list[TokenIds] | list[str]
    max_tokens: int | None = 16
    logprobs: Annotated[int, Field(ge=0, le=_MAX_TOP)] | None = None
    add_special_tokens: bool = True

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _say_what_a_prompt_is(cls, value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        try:
            return read(value)
        except ValidationError:
            raise ValueError("a prompt is a text, a list of token ids (none negative), or a list of either") from None


class ChatMessage(BaseModel):
    """One message; whatever else it holds is for the chat template."""

    model_config = ConfigDict(extra="allow")

    role: str


class ChatRequest(_Request):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=_MAX_TOP)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_way_to_end_the_prompt(self) -> ChatRequest:
        if self.add_generation_prompt and self.continue_final_message:
            raise ValueError("add_generation_prompt and continue_final_message exclude each other; set one to false")
        return self

    @property
    def parsed_tools(self) -> list[dict[str, Any]] | None:
        """The tools whose calls are looked for in the answer."""
        return None if self.tool_choice == "none" else self.tools


class ReloadArguments(BaseModel):
    """Where the new weights are: the folder of a saved model."""

    weights_path: str


class RpcRequest(BaseModel):
    """``POST /collective_rpc``: the one method that is served."""

    method: Literal["reload_weights"]
    arguments: Annotated[ReloadArguments, Field(alias="kwargs")]


class VersionRequest(BaseModel):
    """``POST /update_weight_version``."""

    new_version: Annotated[str, Field(min_length=1)]
