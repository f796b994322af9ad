"""DI: an inference engine for DeepSeek-V4.1 models."""

__version__ = "0.1.0"
