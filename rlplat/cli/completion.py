"""`rlplat completion bash|zsh|fish`: a few lines for the shell, which asks this command for the words at every TAB.

What can come next depends on what is there (runs, configs, trackers), so the shell asks instead of holding a list.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from rlplat.cli import COMMANDS, HIDDEN, command_of
from rlplat.cli.parser import command

_HELP = """\
Print what the shell needs to complete commands, options, algorithms, configs and runs.

shell@{bash,fish,zsh}  whose TAB key

to have it in every new shell:
  echo 'eval "$(rlplat completion bash)"' >> ~/.bashrc
  echo 'eval "$(rlplat completion zsh)"' >> ~/.zshrc
  mkdir -p ~/.config/fish/completions; rlplat completion fish > ~/.config/fish/completions/rlplat.fish
"""

SCRIPTS = {
    "bash": """\
_rlplat() {
    local IFS=$'\\n'
    COMPREPLY=($(rlplat completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [ -n "${COMPREPLY[*]}" ] || compopt -o default
}
complete -F _rlplat rlplat
""",
    "zsh": """\
_rlplat() {
    local -a found
    found=(${(f)"$(rlplat completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#found} )); then compadd -a found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _rlplat rlplat
""",
    "fish": """\
function __rlplat_words
    set -l words (commandline -opc) (commandline -ct)
    set -l found (rlplat completion --words $words[2..-1] 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c rlplat -f -a '(__rlplat_words)'
""",
}


@command("completion", _HELP, takes_words=True)
def run(arguments: list[str]) -> int:
    if arguments[:1] == ["--words"]:
        with contextlib.suppress(BrokenPipeError):
            print("\n".join(candidates(arguments[1:])), end="")
        return 0
    sys.stdout.write(SCRIPTS[run.parser().parse_args(arguments).shell])
    return 0


def candidates(words: list[str]) -> list[str]:
    """What the last of these words may become; nothing: whatever the shell thinks, files mostly."""
    *before, begun = words or [""]
    if not before:
        return _beginning(COMMANDS.keys() - HIDDEN, begun)
    parser = parser_of(before[0])
    if parser is None:
        return []
    if begun.startswith("-"):
        return _beginning(options_of(parser), begun)
    if len(before) > 1 and before[-1] in _VALUES:
        return _beginning(_VALUES[before[-1]](), begun)
    if before[-1].startswith("--"):
        return []  # a value that only the user knows
    return _beginning(_POSITIONS[before[0]](), begun) if before[0] in _POSITIONS else []


def _beginning(words: Iterable[str], begun: str) -> list[str]:
    return sorted(word for word in words if word.startswith(begun))


def parser_of(command: str) -> argparse.ArgumentParser | None:
    if command not in COMMANDS:
        return None
    return command_of(command).parser()


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Its long options, as its usage line names them."""
    usage = parser.format_usage().replace("[", " ").replace("]", " ").split()
    return sorted({word for word in usage if word.startswith("--")} | {"--help"})


def _algorithms() -> list[str]:
    from rlplat.rl.run.registry import algorithm_homes

    return list(algorithm_homes())


def _names_of_algorithms() -> list[str]:
    """Those of other libraries as well: `train` takes them."""
    from rlplat.rl.names_elsewhere import ALGORITHMS_ELSEWHERE

    return [*_algorithms(), *ALGORITHMS_ELSEWHERE]


def _environments() -> list[str]:
    from rlplat.rl.run.registry import shipped_configs

    return [name.partition("/")[2] for name in shipped_configs() if not name.startswith("tune/")]


def _configs() -> list[str]:
    from rlplat.rl.run.registry import shipped_configs

    return [name for name in shipped_configs() if not name.startswith("tune/")]


def _experiments() -> list[str]:
    from rlplat.rl.run.registry import shipped_configs

    return [f"configs/{name}.yaml" for name in shipped_configs() if name.startswith("tune/")]


def _runs() -> list[str]:
    """Those in ./runs: a longer search would make the TAB key slow."""
    found = (*Path("runs").glob("*/config.yaml"), *Path("runs").glob("*/experiment.yaml"))
    return [str(path.parent) for path in found]


def _trackers() -> list[str]:
    from rlplat.rl.run.registry import announced
    from rlplat.tracking.tracker import GROUP

    return list(announced(GROUP))


_VALUES: dict[str, Callable[[], Iterable[str]]] = {
    "--algo": _names_of_algorithms,
    "--env": _environments,
    "--framework": lambda: ("torch", "tf"),
    "--init-from": _runs,
    "--resume": _runs,
    "--runs": _runs,
    "--to": _trackers,
    "--track": _trackers,
    "--checkpoint": lambda: ("best", "latest"),
}
_POSITIONS: dict[str, Callable[[], Iterable[str]]] = {
    "train": _configs,
    "tune": _experiments,
    "evaluate": _runs,
    "export": _runs,
    "play": _runs,
    "serve": _runs,
    "track": _runs,
    "settings": _algorithms,
    "list": lambda: ("tasks", "actors", "objects", "workers", "nodes", "placement-groups"),
    "completion": lambda: SCRIPTS,
}
