"""The command `di`: parses arguments, prints results. Every command is a function of the library."""

from di_engine.cli.app import main

__all__ = ["main"]
