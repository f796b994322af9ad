"""Checks the changelog fragments: good names, and one for every package that was changed.

    python tools/check_fragments.py            names alone, every package
    python tools/check_fragments.py FILE...    and a fragment for each package among these sources

All problems are listed. Exit codes: 0 none, 1 some.
"""

import sys
from pathlib import Path

from releasing.changelog import read_fragments
from releasing.errors import ReleaseError

REPOSITORY = Path(__file__).resolve().parents[1]


def changed_packages(names: list[str]) -> set[str]:
    """Returns the packages whose sources are among the changed files."""
    parts = [Path(name).parts for name in names]
    return {p[1] for p in parts if len(p) > 3 and p[0] == "packages" and p[2] == "src"}


def main(names: list[str]) -> int:
    """Checks every package, prints every problem, and returns the exit code."""
    problems = []
    changed = changed_packages(names)
    for file in sorted(REPOSITORY.glob("packages/*/pyproject.toml")):
        package = file.parent
        try:
            fragments = read_fragments(package)
        except ReleaseError as error:
            problems.append(str(error))
            continue
        if package.name in changed and not fragments:
            problems.append(
                f"packages/{package.name}: its sources changed, add "
                "changes/<number>.<added|changed|deprecated|removed|fixed|security>.md"
            )
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
