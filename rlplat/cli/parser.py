"""Commands and their parsers, made from their help text; a complaint is one line, not all options first.

    HELP = '''
    Play episodes with the trained agent of a run.

    RUN                  a run directory, or one of its checkpoints
    --episodes N:20      how many
    --json               print one JSON object

    examples:
      rlplat evaluate runs/demo
    '''

    @command("evaluate", HELP)
    def run(options: argparse.Namespace) -> int: ...

A line of the second part is an argument and what it means, two blanks between them; further lines of its meaning are
indented. `N:20` has a default (`NAME:` an empty text), `N>0` is positive, `WORKER?` may be absent, `RUN...` and `RUN+`
take several, `KEY*` may be repeated, `--resume auto?` alone is "yes", `--out! FILE` is required, `{a,b}` are choices,
`dest@NAME` names the value.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from rlplat.errors import UsageError
from rlplat.paths import expanded

_KINDS = {"int": "a whole number", "float": "a number"}
_TYPES = {"N": int, "S": float, "SHARE": float} | dict.fromkeys(("RUN", "DIR", "FILE", "FILE.mp4"), expanded)


class Parser(argparse.ArgumentParser):
    """No abbreviations; the epilog as it is written; --quiet and --debug, which `exit_codes` takes out."""

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            conflict_handler="resolve",
        )
        self.add_common()

    def add_common(self) -> None:
        """Again: they become the last ones."""
        self.add_argument("--quiet", action="store_true", help="print errors only")
        self.add_argument("--debug", action="store_true", help="show tracebacks of errors")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{_in_our_words(message)} ({self.prog} --help)")


@dataclass(frozen=True)
class Command:
    """The `run` of a command's module: called with the words after the command's name, it returns the exit code."""

    parser: Callable[[], Parser]
    does: Callable[[Any], int]
    takes_words: bool = False
    """Whether it is given the words as they are, else the options that they say."""
    check: Callable[[list[str]], None] = lambda words: None
    """Raises for words that no parser is to complain of."""

    def __call__(self, words: list[str]) -> int:
        self.check(words)
        return self.does(words if self.takes_words else self.parser().parse_args(words))


def command(
    name: str, text: str, types: Mapping[str, Any] | None = None, **more: Any
) -> Callable[[Callable[[Any], int]], Command]:
    """Decorates what a command does; text, types: see `parser_from`; more: `takes_words`, `check`."""
    return lambda does: Command(lambda: parser_from(name, text, types), does, **more)


def parser_from(name: str, text: str, types: Mapping[str, Any] | None = None) -> Parser:
    """types: of values by what stands for them, instead of a number for N, a path for FILE, ..."""
    description, arguments, *rest = text.strip("\n").split("\n\n", 2)
    parser = Parser(f"rlplat {name}", description, "".join(rest))
    for line in re.sub(r"\n +", " ", arguments).split("\n"):
        words, _, meaning = line.partition("  ")
        _add(parser, words, meaning.strip(), _TYPES if types is None else types)
    parser.add_common()
    return parser


def _add(parser: Parser, words: str, meaning: str, types: Mapping[str, Any]) -> None:
    dest, _, words = words.rpartition("@")
    *names, value = words.split(" ")
    if value.startswith("-"):
        names, value = [*names, value], ""
    options: dict[str, Any] = {"dest": dest} if dest and names else {}
    if names and names[-1].endswith("!"):
        names[-1], options["required"] = names[-1][:-1], True
    found = re.fullmatch(r"(\{[^}]*\}|\[[^]]*\][A-Z]+|[^:?*+.]+(?:\.[a-z]\w+)?)(:|\?|\*|\+|\.\.\.)?(.*)", value)
    if found is None:
        options["action"] = "store_true"
    else:
        shown, sign, default = found.groups()
        shown, bound, _ = shown.partition(">")
        kind = _positive(types[shown]) if bound else types.get(shown, str)
        options |= {"metavar": shown, "type": kind}
        if shown.startswith("{"):
            options |= {"choices": shown[1:-1].split(","), "metavar": None if names else shown}
        if sign == ":" or default:
            options["default"] = kind(default)
            meaning += f" (default: {default})" if default else ""
        options |= {"?": {"nargs": "?"}, "+": {"nargs": "+"}, "...": {"nargs": "+"}}.get(sign or "", {})
        if sign == "?" and names:
            options["const"] = "yes"
        if sign in ("*", "+") and names:
            options |= {"action": "append" if sign == "*" else "extend", "default": []}
    names = names or [dest or re.sub(r"\W", "_", value.rstrip("?.").partition("?")[0]).lower()]
    parser.add_argument(*names, help=meaning.replace("%", "%%"), **options)


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    @functools.wraps(kind, updated=())  # argparse names it
    def read(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"is a positive number, not {text}")
        return value

    return read


def _in_our_words(message: str) -> str:
    if found := re.fullmatch(r"argument ([^:]*): (is a positive .*)", message):
        return f"{_name(found[1])} {found[2]}"
    if found := re.fullmatch(r"argument ([^:]*): invalid (int|float) value: (.*)", message):
        return f"{_name(found[1])} takes {_KINDS[found[2]]}, not {found[3]}"
    if found := re.fullmatch(r"argument ([^:]*): invalid choice: (.*?) \(choose from (.*)\)", message):
        choices = found[3].replace("'", "").split(", ")
        return f"{_name(found[1])} is one of {', '.join(choices)}, not {found[2]}"
    if found := re.fullmatch(r"argument ([^:]*): expected (one|at least one) argument", message):
        return f"{_name(found[1])} needs a value after it"
    if found := re.fullmatch(r"the following arguments are required: (.*)", message):
        return f"missing: {found[1]}"
    if found := re.fullmatch(r"unrecognized arguments: (.*)", message):
        return f"unexpected: {found[1]}"
    return message


def _name(argument: str) -> str:
    """`-f/--follow` -> `--follow`."""
    return argument.rpartition("/")[2]
