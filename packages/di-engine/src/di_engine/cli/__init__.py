"""The command `di`: parses arguments and prints what functions of the library return."""

from di_engine.cli.app import main

__all__ = ["main"]
