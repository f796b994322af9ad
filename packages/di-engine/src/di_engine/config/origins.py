"""Sources of configuration values: YAML file, environment, overrides, and their merging."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from di_engine.errors import ConfigError

__all__ = [
    "ENVIRONMENT_PREFIX",
    "ConfigField",
    "Layer",
    "describe_errors",
    "environment_name",
    "merge",
    "read_environment",
    "read_file",
    "resolve_names",
]

ENVIRONMENT_PREFIX = "DI_"
_NO_VALUE = ("", "none", "null")


@dataclass(frozen=True, slots=True)
class ConfigField:
    """One field: its type, default and help text (with unit)."""

    annotation: Any
    default: Any
    help: str

    @classmethod
    def of(cls, info: FieldInfo) -> ConfigField:
        """Describes a pydantic field."""
        return cls(info.annotation, info.default, info.description or "")

    def parse(self, text: str) -> Any:
        """Returns the value that a text (environment variable) stands for.

        Raises:
            ValueError: The text is not a value of this field's type.
        """
        if type(None) in get_args(self.annotation) and text.lower() in _NO_VALUE:
            return None
        return TypeAdapter(self.annotation).validate_strings(text)


@dataclass(frozen=True, slots=True)
class Layer:
    """Values by `section.field` path, each with the name of its origin."""

    values: dict[str, Any]
    origins: dict[str, str]


def environment_name(path: str) -> str:
    """Returns the environment variable of a field: `DI_SECTION__FIELD`."""
    return ENVIRONMENT_PREFIX + path.replace(".", "__").upper()


def read_file(path: Path, fields: Mapping[str, ConfigField], problems: list[str]) -> Layer:
    """Reads a YAML file.

    Raises:
        ConfigError: The file cannot be read or is not a YAML mapping.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{path}` is not YAML: {error}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"`{path}` holds a {type(values).__name__}, expected a mapping")
    named = {str(name): value for name, value in values.items()}
    return resolve_names(named, fields, problems, f"file {path}", allow_short_names=False)


def read_environment(
    environ: Mapping[str, str], fields: Mapping[str, ConfigField], problems: list[str]
) -> Layer:
    """Reads the `DI_*` variables; an unknown one is a problem, so that no typing slip is silent."""
    names = {environment_name(path): path for path in fields}
    layer = Layer({}, {})
    for variable in sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX)):
        path = names.get(variable)
        if path is None:
            problems.append(
                f"environment variable `{variable}`: unknown{_suggestion(variable, names)}"
            )
            continue
        text = environ[variable]
        try:
            layer.values[path] = fields[path].parse(text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].lower()
            problems.append(f"environment variable `{variable}`: {text!r}: {reason}")
        layer.origins[path] = f"env {variable}"
    return layer


def resolve_names(
    given: Mapping[str, Any],
    fields: Mapping[str, ConfigField],
    problems: list[str],
    origin: str,
    *,
    allow_short_names: bool = True,
) -> Layer:
    """Turns sections, paths and (optionally) bare field names into `section.field` paths."""
    sections = {path.split(".")[0] for path in fields if "." in path}
    short = {path.rsplit(".", 1)[-1]: path for path in fields} if allow_short_names else {}
    layer = Layer({}, {})

    def put(path: str, value: Any) -> None:
        if path not in fields:
            problems.append(f"`{path}`: unknown ({origin}){_suggestion(path, [*fields, *short])}")
            return
        layer.values[path] = value
        layer.origins[path] = origin

    for name, value in given.items():
        if name in sections and isinstance(value, Mapping):
            for leaf, leaf_value in value.items():
                put(f"{name}.{leaf}", leaf_value)
        elif name == "model" and isinstance(value, str | Path):
            put("model.path", str(value))
        elif name in sections and value is None:
            continue  # an empty section of a YAML file
        elif name in sections:
            problems.append(f"`{name}`: {value!r} ({origin}), expected a mapping of its fields")
        else:
            put(short.get(name, name), value)
    return layer


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean `{close[0]}`" if close else ", see `di doctor` for all names"


def merge(layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns nested values and their origins; later layers win."""
    flat: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        flat.update(layer.values)
        origins.update(layer.origins)
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        section, _, leaf = path.rpartition(".")
        target = nested.setdefault(section, {}) if section else nested
        target[leaf] = value
    return nested, origins


def describe_errors(error: ValidationError, fields: Mapping[str, ConfigField]) -> str:
    """Returns one line per problem of a pydantic error, with field, value and what is allowed."""
    lines = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(f"`{path}`: unknown{_suggestion(path, fields)}")
        else:
            lines.append(f"`{path}`: {item['input']!r}: {item['msg'].lower()}")
    return "the engine configuration has problems:\n  " + "\n  ".join(lines)
