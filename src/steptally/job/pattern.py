"""Evaluate Megatron's layer patterns, `([0]*3+[1]*58)`, without evaluating Python.

Megatron-LM passes such texts to `eval` after a look at the characters; here they are parsed:
a sum of terms, each a list, a whole number or a parenthesis, repeated by `*`.
"""

from __future__ import annotations

import re

from steptally.errors import InputError

LONGEST_PATTERN = 100_000
TOKEN = re.compile(r"\s*(\d+|[\[\](),+*])")


def evaluate_pattern(name: str, text: str) -> tuple[int, ...]:
    """The list that a pattern spells; raises `InputError` naming the setting for anything else.

    >>> evaluate_pattern("moe_layer_freq", "([0]*1+[1]*2)*2")
    (0, 1, 1, 0, 1, 1)
    """
    try:
        tokens = _tokens(text)
        value = _sum(tokens)
        if tokens or not isinstance(value, list):
            raise ValueError
    except (ValueError, IndexError, RecursionError) as error:
        raise InputError(
            f"{name} is {text[:80]!r}: it must be a whole number or a list expression such as "
            f"[0]*3+[1]*58, of at most {LONGEST_PATTERN} entries."
        ) from error
    return tuple(value)


def _tokens(text: str) -> list[str]:
    """The tokens in reverse order, so that the next one is popped from the end."""
    tokens, position, text = [], 0, text.strip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ValueError
        tokens.append(match.group(1))
        position = match.end()
    return tokens[::-1]


def _sum(tokens: list[str]) -> list[int] | int:
    total = _product(tokens)
    while tokens and tokens[-1] == "+":
        tokens.pop()
        term = _product(tokens)
        if not isinstance(total, list) or not isinstance(term, list):
            raise ValueError
        total = _bounded(len(total) + len(term)) and total + term
    return total


def _product(tokens: list[str]) -> list[int] | int:
    value = _operand(tokens)
    while tokens and tokens[-1] == "*":
        tokens.pop()
        factor = _operand(tokens)
        if isinstance(value, int):
            value, factor = factor, value  # Python also takes 3*[0]
        if isinstance(value, int) or isinstance(factor, list):
            raise ValueError
        value = _bounded(len(value) * factor) and value * factor
    return value


def _operand(tokens: list[str]) -> list[int] | int:
    token = tokens.pop()
    if token == "(":
        value = _sum(tokens)
        if tokens.pop() != ")":
            raise ValueError
        return value
    return _list(tokens) if token == "[" else int(token)


def _list(tokens: list[str]) -> list[int]:
    items: list[int] = []
    while tokens[-1] != "]":
        items.append(int(tokens.pop()))
        if tokens[-1] == ",":
            tokens.pop()
        elif tokens[-1] != "]":
            raise ValueError
    tokens.pop()
    return items


def _bounded(length: int) -> bool:
    if not 0 < length <= LONGEST_PATTERN:
        raise ValueError
    return True
