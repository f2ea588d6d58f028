"""Rollouts over a scripted engine, played for tests and looked at token by token."""

from atroposlib.envs.server_handling.byte_tokenizer import CHATML_TEMPLATE, ByteTokenizer
from atroposlib.envs.server_handling.managed_server import ManagedServer, SequenceNode
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from tests.atroposlib.envs.server_handling.tools import TOOLS

TOKENIZER = ByteTokenizer()
EOS = TOKENIZER.eos_token_id
SYSTEM, QUESTION = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is here?"}
LS = {"content": "", "tool_calls": [{"name": "terminal", "arguments": {"command": "ls"}}]}
# a template that drops the thoughts of all answers but the last, and only when a new question follows
FORGETFUL = CHATML_TEMPLATE.replace(
    "(message.content or '')",
    "((message.content or '').split('</think>')[-1].lstrip()"
    " if messages[loop.index0:] | selectattr('role', 'equalto', 'user') | list else (message.content or ''))",
)


def managed(*replies, tokenizer=TOKENIZER, **options):
    return ManagedServer(ScriptedServer(list(replies), tokenizer=tokenizer), tokenizer, tool_parser="hermes", **options)


def result(call, content="file.py"):
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def reply(answer, index=0):
    return answer.choices[index].message.model_dump(exclude_none=True)


def trained(node):
    return [token for token in node.masked_tokens if token != -100]


def nodes(server):
    return server.get_state()["nodes"]


def check_shape(node):
    assert isinstance(node, SequenceNode)
    assert len(node.tokens) == len(node.masked_tokens) == len(node.logprobs)
    for token, mask, logprob in zip(node.tokens, node.masked_tokens, node.logprobs, strict=True):
        assert (mask, logprob) == (-100, 1.0) or (mask == token and logprob <= 0)


async def play(server, messages, *turns, **options):
    """Play a conversation; each turn is the messages that follow the answer, or a function of the answer's calls."""
    answers = []
    for turn in turns:
        answer = await server.chat_completion(messages=messages, tools=TOOLS, **options)
        answers.append(answer)
        messages = [*messages, reply(answer)]
        calls = answer.choices[0].message.tool_calls or []
        messages += [turn(call) for call in calls] if callable(turn) else turn
    return answers, messages
