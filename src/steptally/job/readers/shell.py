"""Read a launch script without running it: which commands it would run, with which arguments.

Assignments, arrays, defaults, arithmetic, `if` and `case` on values that the script itself holds.
What depends on the outside (positional parameters, the environment, other files) stays unknown
and is reported where it matters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from steptally.errors import InputError
from steptally.job.readers.shell_values import Field, Variables, environment, expand
from steptally.job.readers.shell_words import Piece, Scanner, Token

ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
DECLARE = {"export", "declare", "local", "readonly", "typeset"}
OPENING = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done"}
SBATCH = re.compile(r"^#SBATCH\s+(--[\w-]+|-[A-Za-z])[= ]*(\S+)", re.MULTILINE)
SLURM_VARIABLES = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "-n": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    "--gres": ("SLURM_GPUS_PER_NODE",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command line after expansion."""

    line: int
    words: tuple[Field, ...]


@dataclass(slots=True, kw_only=True)
class Script:
    """What reading a script gives: its commands, its variables, and what it left undecided.

    `undecided` maps a variable to the line of the condition that alone sets it; `sourced` are
    other files that the script reads.
    """

    variables: Variables
    commands: list[Command] = field(default_factory=list)
    undecided: dict[str, int] = field(default_factory=dict)
    sourced: list[str] = field(default_factory=list)


def read_script(text: str, source: str, outside: Mapping[str, object] | None = None) -> Script:
    """Read a script; `outside` holds variables that the user supplies.

    Raises `InputError` for an unclosed quote or list: the script is truncated.

    >>> read_script("N=2\\ntorchrun --nnodes $N train.py", "run.sh").commands[0].words[2].text
    '2'
    """
    script = Script(variables=environment(_slurm(text), outside or {}))
    _run(_statements(list(Scanner(text, source).tokens())), script)
    return script


def _slurm(text: str) -> dict[str, object]:
    found = {}
    for option, value in SBATCH.findall(text):
        for name in SLURM_VARIABLES.get(option, ()):
            found[name] = value.rpartition(":")[2]
    return found


def _statements(tokens: Sequence[Token]) -> list[list[Token]]:
    """Simple commands, with `then`, `do`, … standing alone, in order."""
    statements: list[list[Token]] = [[]]
    for token in tokens:
        if token.operator:
            alone = token.operator in (")", ";;", "&&", "||")
            statements += [[token], []] if alone else [[]]
            continue
        statements[-1].append(token)
        if len(statements[-1]) == 1 and token.literal in ("then", "do", "else", "{", "}", "!"):
            statements.append([])
    return [statement for statement in statements if statement]


def _run(statements: list[list[Token]], script: Script) -> None:
    position = 0
    while position < len(statements):
        statement = statements[position]
        word = statement[0].literal
        if word in OPENING:
            end = _end_of(statements, position, OPENING[word])
            _run_block(word, statements[position:end], script)
            position = end + 1
            continue
        _run_command(statement, script)
        position += 1
        while position + 1 < len(statements) and statements[position][0].operator in ("&&", "||"):
            follows = _follows(statement, statements[position][0].operator, script)
            if follows:
                break
            if follows is None:
                _note_skipped([statements[position + 1]], script)
            position += 2


def _follows(statement: list[Token], operator: str, script: Script) -> bool | None:
    """Whether the command after `&&` or `||` runs; commands other than tests succeed."""
    is_test = statement[0].literal in ("[", "[[", "test")
    answer = decide([statement], script) if is_test else True
    return None if answer is None else answer is (operator == "&&")


def _run_block(word: str, block: list[list[Token]], script: Script) -> None:
    if word == "if":
        _run_if(block, script)
    elif word == "case":
        _run_case(block, script)
    elif word == "for":
        _run_for(block, script)
    else:
        _run([statement for statement in block[1:] if statement[0].literal != "do"], script)


def _end_of(statements: list[list[Token]], start: int, closing: str) -> int:
    depth = 0
    for position in range(start, len(statements)):
        word = statements[position][0].literal
        if word in OPENING and OPENING[word] == closing:
            depth += 1
        elif word == closing:
            depth -= 1
            if depth == 0:
                return position
    return len(statements)


def _run_if(block: list[list[Token]], script: Script) -> None:
    """Run the branch that the script's own values choose; note what an undecided one would set."""
    branches = _branches(block)
    undecided = False
    for condition, body in branches:
        answer = True if condition is None else decide(condition, script)
        if answer is None:
            undecided = True
        if answer is not True or undecided:
            if undecided:
                _note_skipped(body, script)
            continue
        _run(body, script)
        return


def _branches(
    block: list[list[Token]],
) -> list[tuple[list[list[Token]] | None, list[list[Token]]]]:
    """(condition, body) of `if`, each `elif`, and `else` (condition None)."""
    branches: list[tuple[list[list[Token]] | None, list[list[Token]]]] = []
    condition: list[list[Token]] | None = [block[0][1:]]
    body: list[list[Token]] = []
    depth, in_condition = 0, True
    for statement in block[1:]:
        word = statement[0].literal
        if depth == 0 and word in ("elif", "else"):
            branches.append((condition, body))
            condition, body = ([statement[1:]] if word == "elif" else None), []
            in_condition = word == "elif"
        elif depth == 0 and word == "then":
            in_condition = False
        elif in_condition and condition is not None:
            condition.append(statement)
        else:
            depth += (word in OPENING) - (word in OPENING.values())
            body.append(statement)
    branches.append((condition, body))
    return branches


def decide(condition: Sequence[Sequence[Token]], script: Script) -> bool | None:
    """Whether tests joined by `&&` and `||` hold; None where the script alone does not tell."""
    answer = _decide_one(condition[0], script)
    for operator, test in zip(condition[1::2], condition[2::2], strict=False):
        following = _decide_one(test, script)
        decisive = operator[0].operator == "||"  # true settles an or, false settles an and
        if answer is decisive or following is decisive:
            answer = decisive
        elif answer is None or following is None:
            answer = None
        else:
            answer = following
    return answer


def _decide_one(condition: Sequence[Token], script: Script) -> bool | None:
    words = [token.literal for token in condition]
    if len(words) < 3 or words[0] not in ("[", "[[", "test"):
        return None
    inner = list(condition[1:-1] if words[-1] in ("]", "]]") else condition[1:])
    negated = bool(inner) and inner[0].literal == "!"
    inner = inner[1:] if negated else inner
    answer = _test(inner, script)
    return None if answer is None else answer != negated


def _test(tokens: list[Token], script: Script) -> bool | None:
    if len(tokens) == 2 and tokens[0].literal in ("-z", "-n"):
        text = "".join(field.text for field in expand(tokens[1], script.variables))
        unset = any(field.missing for field in expand(tokens[1], script.variables))
        return (unset or not text) == (tokens[0].literal == "-z")
    if len(tokens) != 3:
        return None
    left, right = (expand(tokens[index], script.variables) for index in (0, 2))
    if any(field.missing for field in [*left, *right]):
        return None
    return _compare(_text(left), tokens[1].literal or "", _text(right))


def _compare(left: str, operator: str, right: str) -> bool | None:
    if operator in ("=", "=="):
        return fnmatchcase(left, right)
    if operator == "!=":
        return not fnmatchcase(left, right)
    try:
        numbers = int(left), int(right)
    except ValueError:
        return None
    answers = {
        "-eq": numbers[0] == numbers[1],
        "-ne": numbers[0] != numbers[1],
        "-gt": numbers[0] > numbers[1],
        "-ge": numbers[0] >= numbers[1],
        "-lt": numbers[0] < numbers[1],
        "-le": numbers[0] <= numbers[1],
    }
    return answers.get(operator)


def _text(fields: list[Field]) -> str:
    return " ".join(field.text for field in fields)


def _note_skipped(statements: list[list[Token]], script: Script) -> None:
    for statement in statements:
        for token in statement:
            if token.pieces and (match := ASSIGN.match(token.pieces[0].text)):
                script.undecided.setdefault(match.group(1), token.line)


def _run_case(block: list[list[Token]], script: Script) -> None:
    """`case WORD in pattern) … ;; esac` where the word is known."""
    head = block[0]
    subject = expand(head[1], script.variables) if len(head) > 1 else []
    known = bool(subject) and not any(field.missing for field in subject)
    clauses = _clauses([head[3:], *block[1:]] if len(head) > 3 else block[1:])
    for patterns, body in clauses:
        if not known:
            _note_skipped(body, script)
        elif any(fnmatchcase(_text(subject), pattern) for pattern in patterns):
            _run(body, script)
            return


def _clauses(statements: list[list[Token]]) -> list[tuple[list[str], list[list[Token]]]]:
    clauses: list[tuple[list[str], list[list[Token]]]] = []
    patterns: list[str] = []
    body: list[list[Token]] | None = None
    for statement in statements:
        operator = statement[0].operator
        if operator == ")" and body is None:
            body = []
        elif operator == ";;":
            clauses.append((patterns, body or []))
            patterns, body = [], None
        elif body is None:
            patterns += [token.literal or "" for token in statement]
        else:
            body.append(statement)
    if patterns:
        clauses.append((patterns, body or []))
    return clauses


def _run_for(block: list[list[Token]], script: Script) -> None:
    """A loop over one word is that word; over several it is not one job, so nothing is set."""
    head = block[0]
    if len(head) < 4:
        return
    values = [field for token in head[3:] for field in expand(token, script.variables)]
    body = [statement for statement in block[1:] if statement[0].literal != "do"]
    if len(values) == 1 and head[1].literal:
        script.variables.scalars[head[1].literal] = values[0]
    _run(body, script)


def _run_command(statement: list[Token], script: Script) -> None:
    """Make the leading assignments, then keep the command that follows them, if any."""
    position = 0
    if statement[0].literal in DECLARE:
        position = 1
        while position < len(statement) and (statement[position].literal or "").startswith("-"):
            position += 1
    while position < len(statement) and _assign(statement[position], script):
        position += 1
    rest = statement[position:]
    if not rest or statement[0].literal in DECLARE or statement[0].operator:
        return
    if rest[0].literal in ("source", "."):
        script.sourced += [_text(expand(token, script.variables)) for token in rest[1:2]]
        return
    words = [field for token in rest for field in expand(token, script.variables)]
    if words and words[0].text == "eval":
        _run_again(words[1:], script)
    elif words and words[0].text not in ("echo", "printf", "cat", ":"):
        script.commands.append(Command(line=rest[0].line, words=tuple(words)))


def _run_again(words: list[Field], script: Script) -> None:
    """`eval "$cmd"` reads the text as a script once more: quotes inside it count now."""
    text = " ".join(word.text for word in words)
    line = words[0].line if words else 1
    try:
        tokens = list(Scanner(text, "eval", line).tokens())
    except InputError:
        return  # an apostrophe in a message, say: no training command
    _run(_statements(tokens), script)


def _assign(token: Token, script: Script) -> bool:
    """Carry out `NAME=…`, `NAME+=…`, `NAME=( … )`; False where the word is no assignment."""
    first = token.pieces[0] if token.pieces else None
    match = (
        ASSIGN.match(first.text) if first and first.kind == "text" and not first.quoted else None
    )
    if match is None or first is None:
        return False
    name, append = match.group(1), bool(match.group(2))
    variables = script.variables
    if name in variables.fixed:
        return True
    if token.array is not None:
        elements = [field for item in token.array for field in expand(item, variables)]
        variables.arrays[name] = (variables.arrays.get(name, []) if append else []) + elements
        variables.scalars.pop(name, None)
        return True
    value = _assigned_value(token, len(match.group(1)) + len(match.group(2)) + 1, variables)
    before = variables.scalars.get(name)
    if append and before is not None:
        value = Field(
            text=before.text + value.text, line=value.line, missing=before.missing or value.missing
        )
    variables.scalars[name] = value
    if not append:
        variables.arrays.pop(name, None)
    return True


def _assigned_value(token: Token, skip: int, variables: Variables) -> Field:
    """The right-hand side: one word, never split."""
    texts, missing = [token.pieces[0].text[skip:]], ""
    for piece in token.pieces[1:]:
        quoted = Token(line=token.line, pieces=(_quoted(piece),))
        for word in expand(quoted, variables):
            texts.append(word.text)
            missing = missing or word.missing
    return Field(text="".join(texts), line=token.line, missing=missing)


def _quoted(piece: Piece) -> Piece:
    return Piece(kind=piece.kind, text=piece.text, quoted=True)
