"""Split a shell script into tokens: words made of quoted and unquoted pieces, and operators.

Enough of bash for launch scripts. A word keeps what each piece is, since a variable splits into
words only outside quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from steptally.errors import InputError

OPERATORS = ("&&", "||", ";;", "|&", ";", "|", "&")
BLANKS = " \t\r"
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=$")
REDIRECTION = re.compile(r"\d*(<<<|<<-?|&>>?|>>|>\||[<>]&?)[ \t]*")
VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|(\d|[@*#?$!-]))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a word: `text`, `variable`, `command` or `arithmetic`, in quotes or not."""

    kind: str
    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A word (its pieces), an array's content `( … )` after `NAME=`, or an operator."""

    line: int
    pieces: tuple[Piece, ...] = ()
    operator: str = ""
    array: tuple[Token, ...] | None = None

    @property
    def literal(self) -> str | None:
        """The word where it is plain text, else None."""
        if self.operator or self.array is not None:
            return None
        if any(piece.kind != "text" for piece in self.pieces):
            return None
        return "".join(piece.text for piece in self.pieces)


class Scanner:
    """Walks over a script once; `source` names it in messages."""

    def __init__(self, text: str, source: str, first_line: int = 1) -> None:
        self.text = re.sub(r"\\[ \t]*\r?\n", lambda m: "\\\n", text)
        self.source = source
        self.position = 0
        self.first_line = first_line
        self.literal_depth = 0
        self._counted_to = 0

    @property
    def line(self) -> int:
        """The line that the scanner stands in, from 1."""
        if self.position > self._counted_to:
            self.first_line += self.text.count("\n", self._counted_to, self.position)
            self._counted_to = self.position
        return self.first_line

    def tokens(self, closing: str = "") -> Iterator[Token]:
        """Tokens up to the end of the text, or up to the parenthesis that closes an array."""
        opened = self.line
        while self.position < len(self.text):
            character = self.text[self.position]
            if character in BLANKS or self.text.startswith("\\\n", self.position):
                self.position += 2 if character == "\\" else 1
            elif character == "#":
                self._skip_comment()
            elif closing and character == closing:
                self.position += 1
                return
            elif character == "\n" or self._at_operator() or character in "()":
                if not closing or character in "\n()":
                    yield from self._operator(closing)
                else:
                    self.position += 1
            elif self._at_redirection():
                self._skip_redirection()
            else:
                yield self._word()
        if closing:
            raise InputError(
                f"{self.source} line {opened}: a list opened with ( is never closed: the script "
                f"looks truncated; give the whole file."
            )

    def _at_operator(self) -> str:
        return next((op for op in OPERATORS if self.text.startswith(op, self.position)), "")

    def _operator(self, closing: str) -> Iterator[Token]:
        line, operator = self.line, self._at_operator() or self.text[self.position]
        self.position += len(operator)
        if not (closing and operator == "\n"):
            yield Token(line=line, operator=operator)

    def _skip_comment(self) -> None:
        end = self.text.find("\n", self.position)
        self.position = len(self.text) if end < 0 else end

    def _at_redirection(self) -> bool:
        return REDIRECTION.match(self.text, self.position) is not None

    def _skip_redirection(self) -> None:
        match = REDIRECTION.match(self.text, self.position)
        operator = match.group(1) if match else ""
        self.position = match.end() if match else self.position + 1
        start = self.position
        if self.text[start : start + 1].strip() and self.text[start] not in ";|&<>()":
            self._word()
        if operator in ("<<", "<<-"):
            self._skip_heredoc(self.text[start : self.position].strip("'\"\\"))

    def _skip_heredoc(self, ending: str) -> None:
        """Drop the body; what follows on the opening line is kept."""
        line_end = self.text.find("\n", self.position)
        if line_end < 0 or not ending:
            return
        body = re.compile(rf"^\s*{re.escape(ending)}\s*$", re.MULTILINE).search(self.text, line_end)
        stop = body.end() if body else len(self.text)
        removed = self.text.count("\n", line_end, stop)
        self.text = self.text[:line_end] + "\n" * removed + self.text[stop:]

    def _word(self) -> Token:
        line, start, pieces = self.line, self.position, list[Piece]()
        while self.position < len(self.text):
            character = self.text[self.position]
            if self.text.startswith("\\\n", self.position):
                self.position += 2
                if self.position < len(self.text) and self.text[self.position] in " \t":
                    break
            elif character == "(" and self._opens_array(start):
                self.position += 1
                return Token(line=line, pieces=_merged(pieces), array=tuple(self.tokens(")")))
            elif self._ends_word(character):
                break
            else:
                self._piece(pieces)
        return Token(line=line, pieces=_merged(pieces))

    def _opens_array(self, start: int) -> bool:
        return ASSIGNMENT.match(self.text[start : self.position]) is not None

    def _ends_word(self, character: str) -> bool:
        """Whether a word ends here; parentheses of a layer pattern, ([0]*3+[1]), belong to it."""
        if character == "(" and self.text[self.position + 1 : self.position + 2] in ("[", "("):
            self.literal_depth += 1
            return False
        if character == ")" and self.literal_depth:
            self.literal_depth -= 1
            return False
        return character in " \t\r\n;|&()<>"

    def _piece(self, pieces: list[Piece]) -> None:
        character = self.text[self.position]
        if character == "'":
            pieces.append(Piece(kind="text", text=self._until("'"), quoted=True))
        elif character == '"':
            self._double_quoted(pieces)
        elif character == "\\":
            pieces.append(Piece(kind="text", text=self.text[self.position + 1 :][:1], quoted=True))
            self.position += 2
        elif character in "$`":
            pieces.append(self._expansion(quoted=False))
        else:
            pieces.append(Piece(kind="text", text=character))
            self.position += 1

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.position + 1)
        if end < 0:
            raise self._unclosed(quote)
        inside = self.text[self.position + 1 : end]
        self.position = end + 1
        return inside

    def _unclosed(self, opening: str, line: int | None = None) -> InputError:
        return InputError(
            f"{self.source} line {line or self.line}: {opening} is opened and never closed: the "
            f"script looks truncated; give the whole file."
        )

    def _double_quoted(self, pieces: list[Piece]) -> None:
        opened = self.line
        self.position += 1
        pieces.append(Piece(kind="text", text="", quoted=True))  # "" is a word
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == '"':
                self.position += 1
                return
            if character == "\\" and self.text[self.position + 1 : self.position + 2] in '"\\$`\n':
                escaped = self.text[self.position + 1 : self.position + 2]
                if escaped != "\n":
                    pieces.append(Piece(kind="text", text=escaped, quoted=True))
                self.position += 2
            elif character in "$`":
                pieces.append(self._expansion(quoted=True))
            else:
                pieces.append(Piece(kind="text", text=character, quoted=True))
                self.position += 1
        raise self._unclosed('"', opened)

    def _expansion(self, *, quoted: bool) -> Piece:
        """`$NAME`, `${…}`, `$((…))`, `$(…)` or a backquoted command."""
        rest = self.text[self.position : self.position + 3]
        if rest.startswith("`"):
            return Piece(kind="command", text=self._until("`"), quoted=quoted)
        if rest == "$((":
            inside = self._balanced("$((", "(", ")")[:-1]
            return Piece(kind="arithmetic", text=inside, quoted=quoted)
        if rest.startswith("$("):
            return Piece(kind="command", text=self._balanced("$(", "(", ")"), quoted=quoted)
        if rest.startswith("${"):
            return Piece(kind="variable", text=self._balanced("${", "{", "}"), quoted=quoted)
        match = VARIABLE.match(self.text, self.position)
        if match is None:
            self.position += 1
            return Piece(kind="text", text="$", quoted=quoted)
        self.position = match.end()
        return Piece(kind="variable", text=match.group(1) or match.group(2), quoted=quoted)

    def _balanced(self, opening: str, open_mark: str, close_mark: str) -> str:
        opened, start = self.line, self.position + len(opening)
        depth, self.position = opening.count(open_mark), start
        while self.position < len(self.text):
            character = self.text[self.position]
            depth += (character == open_mark) - (character == close_mark)
            self.position += 1
            if depth == 0:
                return self.text[start : self.position - 1]
        raise self._unclosed(opening, opened)


def _merged(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Join neighbouring text of the same quoting; scripts are long and pieces single letters."""
    merged: list[Piece] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            merged.append(Piece(kind="text", text="".join(texts), quoted=quoted))
            texts.clear()

    quoted = False
    for piece in pieces:
        if piece.kind == "text" and (not texts or piece.quoted == quoted):
            quoted = piece.quoted
            texts.append(piece.text)
            continue
        flush()
        if piece.kind == "text":
            quoted = piece.quoted
            texts.append(piece.text)
        else:
            merged.append(piece)
    flush()
    return tuple(merged)
