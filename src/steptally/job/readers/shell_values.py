"""What words of a script are worth: variables, defaults, arithmetic, and what stays unknown."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from steptally.job.readers.shell_words import Piece, Scanner, Token

NAME = re.compile(r"(!?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?")
DEFAULT = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
ARITHMETIC = re.compile(
    r"\s*(\d+|\$\{\w+\}|\$?[A-Za-z_]\w*|\$\d|\*\*|&&|\|\||[=!<>]=|[-+*/%()<>?:])"
)
LARGEST_EXPONENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One argument after expansion; `missing` names the first variable it lacks, if any."""

    text: str
    line: int
    missing: str = ""


@dataclass(slots=True, kw_only=True)
class Variables:
    """The variables of a script as far as it has been read; arrays are lists of fields.

    `fixed` are those that the user supplies: the script's own assignments do not change them.
    """

    scalars: dict[str, Field] = field(default_factory=dict)
    arrays: dict[str, list[Field]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    fixed: frozenset[str] = frozenset()

    def lookup(self, name: str) -> Field | None:
        """The scalar value, an array's first element, or None where it is not set."""
        if name in self.scalars:
            return self.scalars[name]
        elements = self.arrays.get(name)
        return elements[0] if elements else None


def lacking(text: str, missing: str) -> str:
    """The variable that a word cut out of a longer text lacks; empty where it is complete.

    >>> lacking("${TP}", "PP"), lacking("--bf16", "PP")
    ('TP', '')
    """
    named = re.search(r"\$\{?(\w+)", text)
    return named.group(1) if named and missing else (missing if "$" in text else "")


def expand(token: Token, variables: Variables) -> list[Field]:
    """The arguments that a word becomes: none, one, or several."""
    fields: list[Field] = []
    current: list[str] | None = None
    missing = ""
    for piece in token.pieces:
        words, lacking, splits = _piece_words(piece, token.line, variables)
        missing = missing or lacking
        if not splits:
            current = [*(current or []), *(word.text for word in words)]
            continue
        for index, word in enumerate(words):
            if index and current is not None:
                fields.append(_field(current, token.line, missing))
                current, missing = None, ""
            current = [*(current or []), word.text]
            missing = word.missing or missing
    if current is not None:
        fields.append(_field(current, token.line, missing))
    return fields


def _field(texts: list[str], line: int, missing: str) -> Field:
    return Field(text="".join(texts), line=line, missing=missing)


def _piece_words(piece: Piece, line: int, variables: Variables) -> tuple[list[Field], str, bool]:
    """The words of a piece, the variable it lacks, and whether its words are separate arguments."""
    if piece.kind == "text":
        return [Field(text=piece.text, line=line)], "", False
    if piece.kind == "arithmetic":
        return _computed(arithmetic(piece.text, variables), f"$(({piece.text}))", line)
    if piece.kind == "command":
        return _computed(_command(piece.text, variables), f"$({piece.text})", line)
    return _variable(piece, line, variables)


def _computed(value: int | str | None, text: str, line: int) -> tuple[list[Field], str, bool]:
    if value is None:
        return [Field(text=text, line=line)], text, False
    return [Field(text=str(value), line=line)], "", False


def _variable(piece: Piece, line: int, variables: Variables) -> tuple[list[Field], str, bool]:
    match = NAME.match(piece.text)
    if match is None or match.group(1):
        return _computed(None, f"${{{piece.text}}}", line)
    name, index, rest = match.group(2), match.group(3), piece.text[match.end() :]
    if index in ("[@]", "[*]"):
        elements = variables.arrays.get(name)
        if elements is None and name in variables.scalars:
            elements = _split(variables.scalars[name])
        variables.used.add(name)
        if elements is None:
            return _unset(name, piece, line)
        if piece.quoted and index == "[*]":
            missing = next((element.missing for element in elements if element.missing), "")
            joined = " ".join(element.text for element in elements)
            return [Field(text=joined, line=line)], missing, False
        if not piece.quoted:  # bash splits the elements too: ARGS+=("--fp8-format hybrid")
            elements = [word for element in elements for word in _split(element)]
        return elements, "", True
    variables.used.add(name)
    value = variables.lookup(name)
    if index and index[1:-1].isdigit():
        elements = variables.arrays.get(name, [])
        value = elements[int(index[1:-1])] if int(index[1:-1]) < len(elements) else None
    if rest:
        value, known = _with_rule(name, value, rest, line, variables)
        if not known:
            return _computed(None, f"${{{piece.text}}}", line)
    if value is None:
        return _unset(name, piece, line)
    if piece.quoted:
        return [value], value.missing, False
    words = _split(value)
    return words, "" if words else value.missing, True


def _unset(name: str, piece: Piece, line: int) -> tuple[list[Field], str, bool]:
    return [Field(text=f"${{{piece.text}}}", line=line, missing=name)], name, False


def _with_rule(
    name: str, value: Field | None, rest: str, line: int, variables: Variables
) -> tuple[Field | None, bool]:
    """`${NAME:-word}` and its kin; the second result is whether the rule is one of these."""
    match = DEFAULT.match(rest)
    if match is None:
        return None, False
    colon, kind, text = match.groups()
    is_set = value is not None and not (colon and value.text == "")
    if kind == "+":
        return (_word(text, line, variables) if is_set else Field(text="", line=line)), True
    if is_set or kind == "?":
        return value, True
    value = _word(text, line, variables)
    if kind == "=":
        variables.scalars[name] = value
    return value, True


def _word(text: str, line: int, variables: Variables) -> Field:
    """A default is itself a word that may hold variables."""
    tokens = list(Scanner(f'"{text}"' if '"' not in text else text, "default", line).tokens())
    fields = [field for token in tokens for field in expand(token, variables)]
    missing = next((field.missing for field in fields if field.missing), "")
    return Field(text=" ".join(field.text for field in fields), line=line, missing=missing)


def _split(value: Field) -> list[Field]:
    return [
        Field(text=word, line=value.line, missing=lacking(word, value.missing))
        for word in value.text.split()
    ]


def _command(text: str, variables: Variables) -> str | int | None:
    """The two substitutions that a file alone decides: `echo words` and `expr sum`."""
    name, _, rest = text.strip().partition(" ")
    if name == "expr":
        return arithmetic(rest.replace("\\*", "*"), variables)
    if name != "echo":
        return None
    field = _word(rest, 0, variables)
    return None if field.missing or "|" in rest else field.text


def arithmetic(text: str, variables: Variables) -> int | None:
    """The value of an integer expression as in `$(( … ))`; None where a variable is not known."""
    tokens, position = [], 0
    text = text.strip()
    while position < len(text):
        match = ARITHMETIC.match(text, position)
        if match is None:
            return None
        tokens.append(match.group(1))
        position = match.end()
    tokens.reverse()
    try:
        value = _choice(tokens, variables)
    except (IndexError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return None if tokens else value


def _choice(tokens: list[str], variables: Variables) -> int:
    """`a > b ? c : d`."""
    value = _chain(tokens, variables, 0)
    if not tokens or tokens[-1] != "?":
        return value
    tokens.pop()
    yes = _choice(tokens, variables)
    if tokens.pop() != ":":
        raise ValueError
    no = _choice(tokens, variables)
    return yes if value else no


def _chain(tokens: list[str], variables: Variables, level: int) -> int:
    """Operators of one precedence, left to right; tighter ones below."""
    if level == len(PRECEDENCE):
        return _operand(tokens, variables)
    value = _chain(tokens, variables, level + 1)
    while tokens and tokens[-1] in PRECEDENCE[level]:
        operation = PRECEDENCE[level][tokens.pop()]
        value = int(operation(value, _chain(tokens, variables, level + 1)))
    return value


def _power(base: int, exponent: int) -> int:
    if not 0 <= exponent <= LARGEST_EXPONENT:
        raise ValueError
    return int(base**exponent)


def _quotient(left: int, right: int) -> int:
    """Bash rounds towards zero."""
    magnitude = abs(left) // abs(right)
    return magnitude if (left < 0) == (right < 0) else -magnitude


PRECEDENCE: tuple[Mapping[str, Callable[[int, int], int]], ...] = (
    {"||": lambda left, right: bool(left) or bool(right)},
    {"&&": lambda left, right: bool(left) and bool(right)},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda a, b: a - b * _quotient(a, b)},
    {"**": _power},
)


def _operand(tokens: list[str], variables: Variables) -> int:
    token = tokens.pop()
    if token == "(":
        value = _choice(tokens, variables)
        if tokens.pop() != ")":
            raise ValueError
        return value
    if token == "-":
        return -_operand(tokens, variables)
    if token.isdigit():
        return int(token)
    name = token.strip("${}")
    variables.used.add(name)
    found = variables.lookup(name)
    if found is None or found.missing:
        raise ValueError
    return int(found.text)


def environment(values: Mapping[str, object], fixed: Mapping[str, object]) -> Variables:
    """Variables that are set before the script runs, those in `fixed` for good."""
    both = {**values, **fixed}
    return Variables(
        scalars={name: Field(text=str(value), line=0) for name, value in both.items()},
        fixed=frozenset(fixed),
    )
