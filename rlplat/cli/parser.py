"""`Parser`: argparse whose complaint is one line in our words, instead of all options and then its own."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from rlplat.errors import UsageError

_KINDS = {"int": "a whole number", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """No abbreviations; the epilog as it is written."""

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{_in_our_words(message)} ({self.prog} --help)")


def _in_our_words(message: str) -> str:
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
