"""Reads the signatures of the SM100 kernel libraries out of their published source archives.

    python tools/read_sm100_signatures.py           writes tests/sm100/signatures.json of di-kernels
    python tools/read_sm100_signatures.py --check   compares instead, exit code 1 where they differ

uv fetches and unpacks the archives while it resolves them: their metadata is complete as written,
so nothing of theirs is run or built (pip would run their `setup.py`, which wants a GPU's compiler).
Recorded are facts: names of functions and parameters, and defaults. Bound C++ functions state
theirs in `m.def("name", ..., py::arg("parameter") = default)`, Python ones in their `def`. Only
names that the package itself offers count.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STORED = Path(__file__).resolve().parents[1] / "packages/di-kernels/tests/sm100/signatures.json"
LIBRARIES = {"deep_gemm": ("deepinfer-gemm", "2.8.2"), "flash_mla": ("deepinfer-flashmla", "1.0.0")}
CPP_DEFAULTS = {"std::nullopt": None, "nullptr": None, "true": True, "false": False}

Parameter = dict[str, Any]
"""`name`, and `default` where there is one."""


def unpack(distribution: str, version: str, cache: Path) -> Path:
    """Lets uv fetch a source archive and returns the folder of its contents."""
    command = ["uv", "pip", "compile", "-", "--cache-dir", str(cache), "--quiet"]
    subprocess.run(
        command,
        input=f"{distribution}=={version}",
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (folder,) = cache.glob(f"sdists-*/*/{distribution}/{version}/*/src")
    return folder


def offered_names(package: Path) -> set[str]:
    """Names that a package, or a module of it, defines or imports."""
    file = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    names = set()
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.FunctionDef):
            names.add(statement.name)
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if alias.name == "*":
                    names |= offered_names(file.parent / str(statement.module))
                else:
                    names.add(alias.asname or alias.name)
    return names


def matching_end(text: str, start: int) -> int:
    """Index behind the parenthesis that closes the one at `start`."""
    depth, quoted = 0, False
    for index in range(start, len(text)):
        character = text[index]
        if character == '"' and text[index - 1] != "\\":
            quoted = not quoted
        elif not quoted and character in "({[":
            depth += 1
        elif not quoted and character in ")}]":
            depth -= 1
            if depth == 0:
                return index + 1
    raise ValueError(f"no closing parenthesis after: {text[start : start + 60]}")


def cpp_default(text: str) -> Any:
    """Value of a C++ default: null, boolean, string, number, or a tuple of numbers."""
    text = text.strip()
    if text in CPP_DEFAULTS:
        return CPP_DEFAULTS[text]
    if text.startswith("std::make_tuple"):
        return list(ast.literal_eval(text.removeprefix("std::make_tuple")))
    return ast.literal_eval(text)


def bound_functions(text: str) -> Iterator[tuple[str, list[Parameter]]]:
    """Functions that C++ source binds, with their parameters.

    A function bound without `py::arg` has parameters that Python cannot name; one that is a lambda
    says how many, the others are left out.
    """
    text = re.sub(r"//[^\n]*", "", text)
    for match in re.finditer(r"m\.def\(\s*\"(\w+)\"", text):
        call = text[match.end() : matching_end(text, text.index("(", match.start())) - 1]
        arguments = list(re.finditer(r"py::arg\(\"(\w+)\"\)\s*(=\s*)?", call))
        parameters: list[Parameter] = []
        for argument in arguments:
            parameter: Parameter = {"name": argument[1]}
            if argument[2]:
                rest = call[argument.end() :]
                end = re.match(r"std::make_tuple\([^)]*\)|[^,)]+", rest)
                parameter["default"] = cpp_default(end[0] if end else "")
            parameters.append(parameter)
        if arguments or re.search(r"\[&?\]\(\)", call):
            yield match[1], parameters
    aliases = re.findall(r'm\.attr\("(\w+)"\) = m\.attr\("(\w+)"\)', text)
    bound = {}
    if aliases:
        without = re.sub(r"m\.attr[^;]*;", "", text)
        bound = dict(bound_functions(without))
    for alias, name in aliases:
        yield alias, bound[name]


def defined_functions(text: str) -> Iterator[tuple[str, list[Parameter]]]:
    """Functions that Python source defines, with their parameters, `*args` and `**kwargs` too."""
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.FunctionDef):
            continue
        arguments = statement.args
        plain = [*arguments.posonlyargs, *arguments.args]
        parameters: list[Parameter] = [{"name": argument.arg} for argument in plain]
        for parameter, default in zip(
            reversed(parameters), reversed(arguments.defaults), strict=False
        ):
            parameter["default"] = ast.literal_eval(default)
        if arguments.vararg:
            parameters.append({"name": f"*{arguments.vararg.arg}"})
        if arguments.kwarg:
            parameters.append({"name": f"**{arguments.kwarg.arg}"})
        yield statement.name, parameters


def read_library(module: str, source: Path) -> dict[str, list[Parameter]]:
    """Parameters of every function that the module offers, by name."""
    functions: dict[str, list[Parameter]] = {}
    for file in sorted(source.glob("csrc/apis/*.hpp")):
        functions |= dict(bound_functions(file.read_text(encoding="utf-8")))
    for file in [*(source / module).glob("*.py"), *(source / module).glob("mega/*.py")]:
        functions |= dict(defined_functions(file.read_text(encoding="utf-8")))
    offered = offered_names(source / module)
    return {name: functions[name] for name in sorted(functions) if name in offered}


def render(libraries: dict[str, dict[str, Any]]) -> str:
    """JSON with one function a line."""
    parts = []
    for module, facts in libraries.items():
        lines = [
            f"      {json.dumps(name)}: {json.dumps(parameters)}"
            for name, parameters in facts["functions"].items()
        ]
        parts.append(
            f"  {json.dumps(module)}: {{\n"
            f'    "distribution": {json.dumps(facts["distribution"])},\n'
            f'    "version": {json.dumps(facts["version"])},\n'
            '    "functions": {\n' + ",\n".join(lines) + "\n    }\n  }"
        )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read_all() -> str:
    """The signatures of all libraries as they are stored."""
    libraries = {}
    with tempfile.TemporaryDirectory() as cache:
        for module, (distribution, version) in LIBRARIES.items():
            source = unpack(distribution, version, Path(cache))
            libraries[module] = {
                "distribution": distribution,
                "version": version,
                "functions": read_library(module, source),
            }
    return render(libraries)


def main(arguments: list[str] | None = None) -> int:
    """Writes or compares the stored signatures; 0 when they are equal afterwards."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args(arguments)
    text = read_all()
    if not options.check:
        STORED.write_text(text, encoding="utf-8")
        return 0
    if text == STORED.read_text(encoding="utf-8"):
        return 0
    print(f"{STORED.name} differs from the published archives: run this without --check")
    return 1


if __name__ == "__main__":
    sys.exit(main())
