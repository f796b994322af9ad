r"""Patterns of JSON strings, rewritten for a grammar of the text between the quotes.

xgrammar 0.2.9 matches a `pattern` against that text, not against the value it stands for. It takes
quotes, backslashes and control characters out of a pattern, but if nothing is left without them, it
writes them as they are, which breaks the JSON.
"""

import re
from collections.abc import Iterator

__all__ = ["escape_for_json"]

SHORT_ESCAPES = {
    ord(char): f"\\{letter}" for char, letter in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)
}
"""Two-character escapes of JSON (RFC 8259, section 7)."""
ESCAPED = (*range(0x20), ord('"'), ord("\\"))
LETTER_ESCAPES = {"f": 12, "n": 10, "r": 13, "t": 9, "v": 11}

NOT_ESCAPED = r'\x00-\x1f"\\'
"""The members of a negated class that keep out what JSON escapes."""
SETS = {
    ".": rf"[^{NOT_ESCAPED}\u2028\u2029]",
    r"\s": "[ ]",
    r"\S": rf"[^{NOT_ESCAPED}\s]",
    r"\W": rf"[^{NOT_ESCAPED}\w]",
    r"\D": rf"[^{NOT_ESCAPED}\d]",
}

ATOM = r"""
    \\x(?P<byte>[0-9A-Fa-f]{2})
  | \\u(?:(?P<unit>[0-9A-Fa-f]{4})|\{(?P<point>[0-9A-Fa-f]+)\})
  | \\c(?P<control>[A-Za-z])
  | \\0(?P<octal>[0-7]{0,2})
  | \\(?P<escaped>.)
  | (?P<plain>[^\\])
"""
_ATOM = re.compile(ATOM, re.VERBOSE | re.DOTALL)
_PART = re.compile(rf"\[(?P<members>(?:\\.|[^\]\\])*)\] | {ATOM}", re.VERBOSE | re.DOTALL)


def escape_for_json(pattern: str) -> str:
    r"""Rewrites a pattern of a string's value into one of its JSON text.

    A quote, backslash or control character, in any spelling, becomes a group of its shortest JSON
    escape, so that quantifiers apply to the whole escape. Beside one, sets and classes become
    classes without these characters, and escapes of the class's own members. A pattern that spells
    none stays as it is.

    Args:
        pattern: A regular expression of ECMAScript (ECMA-262, section 22.2.1 and annex B.1.2).
    """
    if not any(map(_is_escaped, _PART.finditer(pattern))):
        return pattern
    return _PART.sub(_escape_part, pattern)


def _is_escaped(part: re.Match[str]) -> bool:
    """Whether a part of a pattern matches nothing but characters that JSON escapes."""
    if part["members"] is None:
        return _code(part, is_member=False) in ESCAPED
    spans = list(_spans(part["members"]))
    return bool(spans) and all(
        0 <= first <= last and all(code in ESCAPED for code in range(first, last + 1))
        for first, last, _ in spans
    )


def _escape_part(part: re.Match[str]) -> str:
    members = part["members"]
    if members is not None:
        return _escape_class(members) if members else part[0]
    code = _code(part, is_member=False)
    if code in ESCAPED:
        return f"(?:{_escape(code)})"
    return SETS.get(part[0], part[0])


def _escape_class(members: str) -> str:
    if members.startswith("^"):
        # Behind other members, a leading hyphen would begin a range.
        rest = re.sub("^-", r"\\-", members[1:])
        return f"[^{NOT_ESCAPED}{rest}]"
    kept: list[str] = []
    others: list[str] = []
    for first, last, text in _spans(members):
        if first < 0 and text in SETS:
            others.append(SETS[text])
        elif first < 0 or last < first:
            kept.append(text)
        else:
            kept += _without_escaped(first, last)
            others += [_escape(code) for code in ESCAPED if first <= code <= last]
    classes = [f"[{''.join(kept)}]"] if kept else []
    return f"(?:{'|'.join(dict.fromkeys([*classes, *others]))})"


def _without_escaped(first: int, last: int) -> Iterator[str]:
    """Writes what is left of a span of a class."""
    for code in (*ESCAPED, last + 1):
        end = min(code - 1, last)
        if first <= end:
            yield _spell(first) if first == end else f"{_spell(first)}-{_spell(end)}"
        first = max(first, code + 1)


def _spans(members: str) -> Iterator[tuple[int, int, str]]:
    """Yields first and last character and text of each member of a class; -1, -1 for a set."""
    atoms = list(_ATOM.finditer(members))[::-1]
    while atoms:
        atom = atoms.pop()
        first = last = _code(atom, is_member=True)
        text = atom[0]
        if len(atoms) > 1 and atoms[-1][0] == "-":
            end = _code(atoms[-2], is_member=True)
            # Beside a set, a hyphen stands for itself (annex B.1.2).
            if min(first, end) >= 0:
                last = end
                text = f"{text}-{atoms[-2][0]}"
                del atoms[-2:]
        yield first, last, text


def _code(atom: re.Match[str], *, is_member: bool) -> int:
    """Returns the character that an atom stands for; -1 if it is a set, assertion or reference."""
    for name in ("byte", "unit", "point"):
        if atom[name] is not None:
            return int(atom[name], 16)
    if atom["control"] is not None:
        return ord(atom["control"]) % 32
    if atom["octal"] is not None:
        return int(atom["octal"] or "0", 8)
    if atom["plain"] is not None:
        return ord(atom["plain"])
    escaped = atom["escaped"]
    if is_member and escaped == "b":
        return ord("\b")
    return LETTER_ESCAPES.get(escaped, -1 if escaped.isalnum() else ord(escaped))


def _spell(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\u{{{code:x}}}"


def _escape(code: int) -> str:
    """Writes the JSON escape of a character as a pattern."""
    return SHORT_ESCAPES.get(code, f"\\u{code:04x}").replace("\\", "\\\\")
