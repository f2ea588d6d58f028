"""How each model writes calls: the other direction of the parsers, for their tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Call = tuple[str, Mapping[str, Any]]


def hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_object(n, a)}\n</tool_call>" for n, a in calls)


def longcat(calls: Sequence[Call]) -> str:
    return (
        hermes(calls)
        .replace("<tool_call>\n{", "<longcat_tool_call>\n{")
        .replace("}\n</tool_call>", "}\n</longcat_tool_call>")
    )


def mistral_list(calls: Sequence[Call]) -> str:
    return "[TOOL_CALLS] [" + ", ".join(_object(n, a) for n, a in calls) + "]</s>"


def mistral_named(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{n}{json.dumps(a)}" for n, a in calls) + "</s>"


def mistral_marked(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{n}[CALL_ID]abc{i:06d}[ARGS]{json.dumps(a)}" for i, (n, a) in enumerate(calls))


def llama(calls: Sequence[Call]) -> str:
    return "<|python_tag|>" + "; ".join(_object(n, a, "parameters") for n, a in calls)


def llama_adjacent(calls: Sequence[Call]) -> str:
    return "".join(_object(n, a, "parameters") for n, a in calls)


def llama_list(calls: Sequence[Call]) -> str:
    return "[" + ", ".join(_object(n, a, "parameters") for n, a in calls) + "]"


def deepseek_v3(calls: Sequence[Call]) -> str:
    blocks = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{json.dumps(a)}\n```<｜tool▁call▁end｜>"
        for n, a in calls
    ]
    return "<｜tool▁calls▁begin｜>" + "\n".join(blocks) + "<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Sequence[Call]) -> str:
    blocks = [f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{json.dumps(a)}<｜tool▁call▁end｜>" for n, a in calls]
    return "<｜tool▁calls▁begin｜>" + "".join(blocks) + "<｜tool▁calls▁end｜>"


def kimi(calls: Sequence[Call]) -> str:
    blocks = [
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{json.dumps(a)}<|tool_call_end|>"
        for i, (n, a) in enumerate(calls)
    ]
    return "<|tool_calls_section_begin|>" + "".join(blocks) + "<|tool_calls_section_end|>"


def glm45(calls: Sequence[Call]) -> str:
    pairs = [
        "".join(f"\n<arg_key>{k}</arg_key>\n<arg_value>{_bare(v)}</arg_value>" for k, v in a.items()) for _, a in calls
    ]
    return "".join(f"<tool_call>{n}{p}\n</tool_call>" for (n, _), p in zip(calls, pairs, strict=True))


def glm47(calls: Sequence[Call]) -> str:
    pairs = [
        "".join(f"<arg_key>{k}</arg_key><arg_value>{_bare(v)}</arg_value>" for k, v in a.items()) for _, a in calls
    ]
    return "".join(f"<tool_call>{n}{p}</tool_call>" for (n, _), p in zip(calls, pairs, strict=True))


def qwen3_coder(calls: Sequence[Call]) -> str:
    pairs = ["".join(f"<parameter={k}>\n{_bare(v)}\n</parameter>\n" for k, v in a.items()) for _, a in calls]
    blocks = [
        f"<tool_call>\n<function={n}>\n{p}</function>\n</tool_call>" for (n, _), p in zip(calls, pairs, strict=True)
    ]
    return "\n".join(blocks)


def minimax(calls: Sequence[Call]) -> str:
    pairs = ["".join(f'<parameter name="{k}">{_bare(v)}</parameter>\n' for k, v in a.items()) for _, a in calls]
    blocks = [f'<invoke name="{n}">\n{p}</invoke>\n' for (n, _), p in zip(calls, pairs, strict=True)]
    return "<minimax:tool_call>\n" + "".join(blocks) + "</minimax:tool_call>"


def dsml(calls: Sequence[Call]) -> str:
    def parameter(key: str, value: Any) -> str:
        told = "true" if isinstance(value, str) else "false"
        return f'<｜DSML｜parameter name="{key}" string="{told}">{_bare(value)}</｜DSML｜parameter>\n'

    pairs = ["".join(parameter(k, v) for k, v in a.items()) for _, a in calls]
    blocks = [f'<｜DSML｜invoke name="{n}">\n{p}</｜DSML｜invoke>\n' for (n, _), p in zip(calls, pairs, strict=True)]
    return "<｜DSML｜function_calls>\n" + "".join(blocks) + "</｜DSML｜function_calls>"


def harmony(calls: Sequence[Call]) -> str:
    blocks = [
        f"<|start|>assistant to=functions.{n}<|channel|>commentary json<|message|>{json.dumps(a)}<|call|>"
        for n, a in calls
    ]
    return "".join(blocks)


def harmony_in_channel(calls: Sequence[Call]) -> str:
    blocks = [
        f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{json.dumps(a)}<|call|>" for n, a in calls
    ]
    return "<|start|>assistant".join(blocks)


def gemma(calls: Sequence[Call]) -> str:
    quote = '<|"|>'
    return "".join(f"<|tool_call>call:{n}{_marked(a, quote)}<tool_call|>" for n, a in calls)


def functiongemma(calls: Sequence[Call]) -> str:
    return "".join(f"<start_function_call>call:{n}{_marked(a, '<escape>')}<end_function_call>" for n, a in calls)


def _marked(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(k, quote)}:{_marked(v, quote)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_marked(item, quote) for item in value) + "]"
    return json.dumps(value)


def _key(key: str, quote: str) -> str:
    return key if key.isalpha() else f"{quote}{key}{quote}"


def _object(name: str, arguments: Mapping[str, Any], key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


IN_JSON: dict[str, tuple[str, Callable[[Sequence[Call]], str]]] = {
    "hermes": ("hermes", hermes),
    "qwen": ("qwen", hermes),
    "longcat": ("longcat", longcat),
    "mistral_list": ("mistral", mistral_list),
    "mistral_named": ("mistral", mistral_named),
    "mistral_marked": ("mistral", mistral_marked),
    "llama3_json": ("llama3_json", llama),
    "llama_adjacent": ("llama3_json", llama_adjacent),
    "llama4_list": ("llama4_json", llama_list),
    "deepseek_v3": ("deepseek_v3", deepseek_v3),
    "deepseek_v3_1": ("deepseek_v3_1", deepseek_v31),
    "kimi_k2": ("kimi_k2", kimi),
    "harmony": ("harmony", harmony),
    "harmony_in_channel": ("gpt_oss", harmony_in_channel),
    "gemma": ("gemma", gemma),
    "functiongemma": ("functiongemma", functiongemma),
}
"""Formats whose strings may hold anything: the name of the parser, and the writer."""

IN_TAGS: dict[str, tuple[str, Callable[[Sequence[Call]], str]]] = {
    "glm45": ("glm45", glm45),
    "glm47": ("glm47", glm47),
    "qwen3_coder": ("qwen3_coder", qwen3_coder),
    "minimax": ("minimax", minimax),
    "deepseek_v3_2": ("deepseek_v3_2", dsml),
}
"""Formats whose arguments stand between tags."""
