"""What can go wrong in ``atroposlib``, one tree.

    AtroposError
    ├── ConfigError            a setting, flag or file is wrong (also a ``ValueError``); exits with code 2
    ├── InferenceError         an engine did not give a usable completion
    │   ├── EngineUnavailable  no answer: not reachable, too slow, overloaded after all retries
    │   ├── EngineRefused      the engine understood and refused (4xx); the same request will be refused again
    │   │   └── ContextFull    the conversation leaves no room for an answer; end the rollout as truncated
    │   └── NotTokenExact      the engine does not tell its own token ids and logprobs
    ├── QueueError             the trajectory server and its clients
    │   ├── QueueUnavailable   no answer from the server after all retries
    │   ├── GroupRefused       a group that no retry will make acceptable (also a ``ValueError``)
    │   ├── QueueFull          the server's limit is reached; try again after ``retry_after_s``
    │   ├── TrainerNotRegistered  no batch can be made before POST /register
    │   ├── UnknownEnvironment the server does not know this ``env_id``; register again
    │   └── StoreError         the server's store could not be read or written
    ├── RewardError            a reward function raised or answered nonsense; never to be read as a score of 0
    └── RolloutInvalid         this rollout must not be trained on; ``reason`` is the word it is counted under

Every class can be pickled, and its message names what to change.
"""

from __future__ import annotations


class AtroposError(Exception):
    """Base of every error of this package."""


class ConfigError(AtroposError, ValueError):
    """A setting, flag or file is wrong; the message names it and what would be right."""


class InferenceError(AtroposError):
    """An engine did not give a usable completion."""


class EngineUnavailable(InferenceError):
    """The engine could not be reached, or did not answer in time, after all retries."""


class EngineRefused(InferenceError):
    """The engine refused the request; sending it again will not help. ``status`` is the HTTP status, if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ContextFull(EngineRefused):
    """The conversation is as long as the rollout or the engine's context may be; no answer fits."""


class NotTokenExact(InferenceError):
    """The engine does not answer with the token ids it consumed and sampled, so nothing can be trained on it."""


class QueueError(AtroposError):
    """Base of what the trajectory server and its clients raise."""


class QueueUnavailable(QueueError):
    """The trajectory server could not be reached, or did not answer in time, after all retries."""


class GroupRefused(QueueError, ValueError):
    """A scored group is malformed or can never be delivered. ``field`` is the key at fault, ``""`` if none is."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class QueueFull(QueueError):
    """The server holds as much as it may; the same group is welcome after ``retry_after_s`` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TrainerNotRegistered(QueueError):
    """Nobody has told the server how large a batch is: POST /register first."""


class UnknownEnvironment(QueueError):
    """The server does not know this environment (it was restarted, or a new run began): register again."""


class StoreError(QueueError):
    """The server's store could not be read or written; nothing after it is acknowledged."""


class RewardError(AtroposError):
    """A reward function raised, or answered something that is not one finite number per completion.

    ``reward`` is its name and ``item_id`` the item that it could not judge, each ``""`` where it is not known.
    """

    def __init__(self, message: str, reward: str = "", item_id: str = "") -> None:
        super().__init__(message)
        self.reward = reward
        self.item_id = item_id


class RolloutInvalid(AtroposError):
    """A rollout that must not become a training sample. ``reason`` is a short word to count it under."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason
