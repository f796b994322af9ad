"""Guards on the files of the repository: they parse, they are small, they hold no secrets.

    python tools/check_files.py            every file that git knows
    python tools/check_files.py FILE...    these (the pre-commit hook)

All problems are listed. Exit codes: 0 none, 1 some.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
MAX_BYTES = 1_000_000
# The built-in checkpoint is weights; golden vectors are data that tests compare with.
MAX_BYTES_BY_PREFIX = {
    "packages/di-engine/src/di_engine/tiny/": 8_000_000,
    "packages/deepseek-recipe/tests/": 16_000_000,
    "tests/": 16_000_000,
}
# Written in two parts, so that this file passes its own check.
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE" rb" KEY-----")
CONFLICT = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)


def max_bytes(name: str) -> int:
    """Returns the size limit of a file by its path in the repository."""
    limits = (limit for prefix, limit in MAX_BYTES_BY_PREFIX.items() if name.startswith(prefix))
    return next(limits, MAX_BYTES)


class _Loader(yaml.SafeLoader):
    """Safe YAML that accepts any tag: mkdocs.yml names Python objects, which stay names here."""


_Loader.add_multi_constructor("", lambda loader, suffix, node: None)


def check_yaml(text: str) -> None:
    """Parses YAML; raises what the parser raises."""
    for _ in yaml.load_all(text, Loader=_Loader):  # a SafeLoader, see above
        pass


PARSERS: dict[str, Callable[[str], object]] = {
    ".toml": tomllib.loads,
    ".yaml": check_yaml,
    ".yml": check_yaml,
}


def problems_of(path: Path, name: str) -> Iterable[str]:
    """Yields what is wrong with one file; `name` is its path in the repository."""
    size = path.stat().st_size
    if size > max_bytes(name):
        yield f"{name}: {size:,} bytes, the limit here is {max_bytes(name):,}"
    content = path.read_bytes()
    if PRIVATE_KEY.search(content):
        yield f"{name}: contains a private key"
    if CONFLICT.search(content):
        yield f"{name}: contains a merge conflict"
    parser = PARSERS.get(path.suffix)
    if parser is not None:
        try:
            parser(content.decode("utf-8"))
        except (ValueError, yaml.YAMLError) as error:
            yield f"{name}: does not parse: {' '.join(str(error).split())}"


def main(names: list[str]) -> int:
    """Checks files, prints every problem, and returns the exit code."""
    if not names:
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        names = listing.stdout.split("\0")
    problems: list[str] = []
    for name in names:
        path = REPOSITORY / name
        if name and path.is_file():
            problems += problems_of(path, name)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
