"""A data set environment over a scripted engine."""

from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from environments.dataset_environment.dataset_env import DatasetEnv

GSM8K = {"dataset_name": "gsm8k", "dataset_config": "main", "prompt_field": "question", "answer_field": "answer"}


def make_env(script, *, token_exact=True, cls=DatasetEnv, **settings):
    """An environment whose engine answers by ``script``: a list of replies, or a function of the request."""
    engine = ScriptedServer(script, token_exact=token_exact)
    defaults = GSM8K | {"reward_functions": ["accuracy"], "use_wandb": False, "group_size": 2}
    env = cls(cls.env_config_cls(**defaults | settings), [engine], testing=True)
    env.tokenizer = engine.tokenizer
    env.engine = engine
    return env


def question_in(request):
    """The last question that a request puts, whatever its kind."""
    if request.messages:
        return next(m["content"] for m in reversed(request.messages) if m["role"] == "user")
    return request.text.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


def add_up(request):
    """Solves a question of ``sums``."""
    words = question_in(request).removesuffix("?").split()
    return f"It is \\boxed{{{int(words[2]) + int(words[4])}}}"
