"""Writes the tables of docs/guides/configuration.md from the code, so that the two cannot differ.

python tools/make_config_docs.py           writes them
python tools/make_config_docs.py --check   exits with 1 when they differ
"""

import re
import sys
from pathlib import Path

from di_engine.config import EngineConfig
from di_engine.config.deepinfer_names import DEEPINFER_ARGUMENTS, DEEPINFER_VARIABLES

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "configuration.md"


def environment_name(key: str) -> str:
    """Returns the environment variable of a field given as `section.field`."""
    return "DI_" + key.replace(".", "__").upper()


def flag_name(key: str) -> str:
    """Returns the command line flag of a field given as `section.field`."""
    return "--model" if key == "model.path" else "--" + key.rsplit(".", 1)[-1].replace("_", "-")


def cell(value: object) -> str:
    """Returns a value as the text of a table cell."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def fields_table() -> str:
    """Returns the table of every field of `EngineConfig`."""
    lines = ["| YAML, Python | flag | environment | default | meaning |", "|---|---|---|---|---|"]
    for key, field in EngineConfig.fields().items():
        default = "-" if field.default is None else f"`{field.default}`"
        lines.append(
            f"| `{key}` | `{flag_name(key)}` | `{environment_name(key)}` | {cell(default)} "
            f"| {cell(field.help)} |"
        )
    return "\n".join(lines)


def deepinfer_table() -> str:
    """Returns the table of DeepInfer's names and ours."""
    lines = ["| DeepInfer 0.1.0 | here | note |", "|---|---|---|"]
    for table in (DEEPINFER_ARGUMENTS, DEEPINFER_VARIABLES):
        for name, counterpart in table.items():
            field = f"`{counterpart.field}`" if counterpart.field else "-"
            lines.append(f"| `{name}` | {field} | {cell(counterpart.note)} |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """Returns the guide with its tables, between the markers, written anew."""
    for name, table in (("fields", fields_table()), ("deepinfer", deepinfer_table())):
        begin, end = f"<!-- {name}: made by tools/make_config_docs.py -->\n", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        block = f"{begin}\n{table}\n\n{end}".replace("\\", "\\\\")
        text, count = pattern.subn(block, text)
        if count != 1:
            raise SystemExit(f"{GUIDE}: expected one block `{name}`, found {count}")
    return text


def main(arguments: list[str]) -> int:
    """Writes or checks the guide; returns the exit code."""
    current = GUIDE.read_text(encoding="utf-8")
    wanted = with_tables(current)
    if arguments == ["--check"]:
        if current != wanted:
            print(f"{GUIDE}: not up to date, run tools/make_config_docs.py", file=sys.stderr)
        return int(current != wanted)
    if arguments:
        print("usage: make_config_docs.py [--check]", file=sys.stderr)
        return 2
    GUIDE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
