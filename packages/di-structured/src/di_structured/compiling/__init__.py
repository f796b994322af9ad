"""Compiling grammars off the hot path."""

from di_structured.compiling.compiler import CompilerConfig, CompilerMetrics, GrammarCompiler

__all__ = ["CompilerConfig", "CompilerMetrics", "GrammarCompiler"]
