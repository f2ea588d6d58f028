"""An environment of tool-using agents over an engine that plays what it is told, in real boxes."""

from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from environments.hermes_base_env import HermesAgentBaseEnv


def call(command):
    return {"tool_calls": [{"name": "terminal", "arguments": {"command": command}}]}


class CountingEnv(HermesAgentBaseEnv):
    """The item says what stands in the box; the reward is whether the answer does."""

    name = "counting"
    asked: list[str]

    async def setup(self):
        self.items = [{"word": f"word{n}"} for n in range(40)]
        self.eval_items, self.items = self.items[:10], self.items[10:]

    async def get_next_item(self):
        self._index += 1
        return self.items[(self._index - 1) % len(self.items)]

    def format_prompt(self, item):
        return f"Write {item['word']} into answer.txt"

    async def prepare_box(self, item, ctx):
        ctx.write_file("given.txt", item["word"])

    async def compute_reward(self, item, result, ctx):
        return 1.0 if ctx.terminal("cat answer.txt")["output"] == item["word"] else 0.0


ITEM = {"word": "word1"}
SOLVE = (call("cat given.txt > answer.txt"), "done")


def make(*replies, cls=CountingEnv, token_exact=True, **settings):
    """An environment whose engine plays ``replies``, or calls the one function given."""
    script = replies[0] if len(replies) == 1 and callable(replies[0]) else replies
    server = ScriptedServer(script, token_exact=token_exact)
    defaults = {"terminal_backend": "local", "use_wandb": False, "enabled_toolsets": ["terminal"], "group_size": 2}
    env = cls(cls.env_config_cls(**defaults | settings), [server], testing=True)
    env.tokenizer = server.tokenizer
    env.engine = server
    return env


def is_first_turn(request):
    if request.kind == "chat":
        return all(message["role"] != "tool" for message in request.messages)
    return "<|im_start|>tool" not in request.text


def by_turn(first, then="done"):
    """A script for rollouts that run at once: ``first`` to a new conversation, ``then`` to tool results."""
    return lambda request: first if is_first_turn(request) else then
