"""The namespaces of flags and of configuration files."""

from typing import Final

ENV_NAMESPACE: Final = "env"
OPENAI_NAMESPACE: Final = "openai"
NAMESPACE_SEP: Final = "."
