"""Configuration: what the model is (`ModelConfig`) and how it is run (`EngineConfig`)."""

from di_engine.config.engram_primes import engram_primes
from di_engine.config.model_config import (
    ModelConfig,
    QuantizationConfig,
    RopeScaling,
    VisionConfig,
)

__all__ = [
    "ModelConfig",
    "QuantizationConfig",
    "RopeScaling",
    "VisionConfig",
    "engram_primes",
]
