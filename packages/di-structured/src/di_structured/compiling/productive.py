"""Finds grammars that admit no text at all.

A context-free rule is productive if some alternative uses only productive rules; a grammar is empty
when its root is not productive. xgrammar 0.2.9 compiles such grammars (`root ::= root`) and then
allows no token. The serialised grammar lists every expression as `[kind, length, payload...]`; the
kinds used here were read off its output.
"""

import json
from typing import Any

__all__ = ["is_productive"]

RULE_REFERENCE, SEQUENCE, CHOICES = 4, 5, 6


def is_productive(serialized_grammar: str) -> bool:
    """Returns whether the root rule of `xgrammar.Grammar.serialize_json()` derives any text.

    Expressions of kinds that this analysis does not know count as productive, so False is certain
    and True is not.
    """
    grammar: dict[str, Any] = json.loads(serialized_grammar)
    data, starts = grammar["grammar_expr_data"], grammar["grammar_expr_indptr"]
    bodies = [rule[1] for rule in grammar["rules"]]
    users: list[list[int]] = [[] for _ in bodies]
    for rule, body in enumerate(bodies):
        for used in _rules_used(body, data, starts):
            users[used].append(rule)
    productive = [False] * len(bodies)
    pending = list(range(len(bodies)))
    while pending:
        rule = pending.pop()
        if not productive[rule] and _derives(bodies[rule], data, starts, productive):
            productive[rule] = True
            pending.extend(users[rule])
    root: int = grammar["root_rule_id"]
    return productive[root]


def _payload(expression: int, data: list[int], starts: list[int]) -> tuple[int, list[int]]:
    start = starts[expression]
    return data[start], data[start + 2 : start + 2 + data[start + 1]]


def _rules_used(body: int, data: list[int], starts: list[int]) -> set[int]:
    used: set[int] = set()
    pending = [body]
    while pending:
        kind, payload = _payload(pending.pop(), data, starts)
        if kind == RULE_REFERENCE:
            used.add(payload[0])
        elif kind in (SEQUENCE, CHOICES):
            pending.extend(payload)
    return used


def _derives(body: int, data: list[int], starts: list[int], productive: list[bool]) -> bool:
    kind, payload = _payload(body, data, starts)
    if kind == RULE_REFERENCE:
        return productive[payload[0]]
    if kind == SEQUENCE:
        return all(_derives(part, data, starts, productive) for part in payload)
    if kind == CHOICES:
        return any(_derives(part, data, starts, productive) for part in payload)
    return True
