"""DI: an inference engine for DeepSeek-V4.1 models.

The public names are loaded when they are first used, so that `import di_engine` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from di_engine.config import EngineConfig, ModelConfig
    from di_engine.errors import (
        CapacityError,
        CheckpointError,
        ConfigError,
        EngineError,
        EngineStoppedError,
        InvalidRequestError,
        ModelExecutionError,
        UnsupportedEnvironmentError,
    )
    from di_engine.llm.async_llm import AsyncLLM
    from di_engine.llm.llm import LLM
    from di_engine.llm.outputs import (
        CompletionOutput,
        Logprob,
        RequestError,
        RequestOutput,
        StreamDelta,
    )
    from di_engine.llm.sampling_params import SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "AsyncLLM": "di_engine.llm.async_llm",
    "LLM": "di_engine.llm.llm",
    "SamplingParams": "di_engine.llm.sampling_params",
    "ChatMessage": "di_engine.llm.outputs",
    "ChatOptions": "di_engine.llm.chat",
    "ChatPrompt": "di_engine.llm.chat",
    "CompletionOutput": "di_engine.llm.outputs",
    "Logprob": "di_engine.llm.outputs",
    "RequestError": "di_engine.llm.outputs",
    "RequestOutput": "di_engine.llm.outputs",
    "StreamDelta": "di_engine.llm.outputs",
    "EngineConfig": "di_engine.config",
    "ModelConfig": "di_engine.config",
    "CapacityError": "di_engine.errors",
    "CheckpointError": "di_engine.errors",
    "ConfigError": "di_engine.errors",
    "EngineError": "di_engine.errors",
    "EngineStoppedError": "di_engine.errors",
    "InvalidRequestError": "di_engine.errors",
    "ModelExecutionError": "di_engine.errors",
    "UnsupportedEnvironmentError": "di_engine.errors",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CapacityError",
    "ChatMessage",
    "ChatOptions",
    "ChatPrompt",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "EngineError",
    "EngineStoppedError",
    "InvalidRequestError",
    "Logprob",
    "ModelConfig",
    "ModelExecutionError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "StreamDelta",
    "UnsupportedEnvironmentError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Imports the module that holds `name`."""
    if name not in _HOMES:
        raise AttributeError(f"module `di_engine` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Lists the public names, loaded or not."""
    return sorted(__all__)
