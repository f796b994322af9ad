"""Configuration: what the model is (`ModelConfig`) and how it is run (`EngineConfig`)."""

from di_engine.config.engine_config import (
    CacheSection,
    EngineConfig,
    ModelSection,
    ObservabilitySection,
    PrefillSection,
    SchedulerSection,
    StructuredSection,
)
from di_engine.config.engram_primes import engram_primes
from di_engine.config.model_config import (
    ModelConfig,
    QuantizationConfig,
    RopeScaling,
    VisionConfig,
)
from di_engine.config.release import release_config

__all__ = [
    "CacheSection",
    "EngineConfig",
    "ModelConfig",
    "ModelSection",
    "ObservabilitySection",
    "PrefillSection",
    "QuantizationConfig",
    "RopeScaling",
    "SchedulerSection",
    "StructuredSection",
    "VisionConfig",
    "engram_primes",
    "release_config",
]
