"""From exceptions to exit codes and one clear message each; tracebacks only with `--debug`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable

from rlplat.cli.output import only_json
from rlplat.errors import MissingExtra, RlplatError, TaskError, UsageError
from rlplat.given.folding import for_stream
from rlplat.given.spelling import spelled

INSTALL = "RLPLAT_INSTALL"
"""The variable in which a script that starts `rlplat` names the script that installs extras."""
_TRIED = "RLPLAT_INSTALLED"
"""The extra that was installed, before the command began again."""


def run_and_report(command: Callable[[list[str]], int], arguments: list[str], *, is_program: bool = False) -> int:
    """Run `command(arguments)`; what it raises becomes a message on stderr and an exit code.

    is_program: the process ends with it.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    program = arguments[len(own) :]  # `exec CLUSTER.yaml -- PROGRAM --debug`: its flags are its own
    debug, quiet = "--debug" in own, "--quiet" in own
    arguments = [argument for argument in own if argument not in ("--debug", "--quiet")] + program
    is_for_programs = "--json" in own and not {"-h", "--help"} & set(own)
    try:
        with contextlib.ExitStack() as streams:
            if is_for_programs:
                streams.enter_context(only_json(is_last=is_program))
            if quiet:  # what is raised is printed after this
                nothing = streams.enter_context(open(os.devnull, "w"))
                streams.enter_context(contextlib.redirect_stderr(nothing))
                if not is_for_programs:
                    streams.enter_context(contextlib.redirect_stdout(nothing))
            return command(arguments)
    except KeyboardInterrupt as interrupt:
        return getattr(interrupt, "exit_code", 130)
    except SystemExit as leaving:  # argparse, after its own message; a file of the user's, with its message
        if isinstance(leaving.code, str):
            print(f"rlplat: {leaving.code}", file=sys.stderr)
        return leaving.code if isinstance(leaving.code, int) else 2
    except BrokenPipeError:
        raise
    except Exception as error:
        if is_program:
            _install_what_is_missing(error)
        if debug:
            traceback.print_exc()
        else:
            print(for_stream(f"rlplat: {message_of(error)}", sys.stderr), file=sys.stderr)
        return 2 if is_usage_error(error) else 1


def _causes(error: BaseException) -> tuple[BaseException | None, ...]:
    return error, error.__cause__, getattr(error, "cause", None)


def is_usage_error(error: BaseException) -> bool:
    return any(isinstance(cause, UsageError) for cause in _causes(error))


def _install_what_is_missing(error: BaseException) -> None:
    """Where a script of a checkout has started this program: install the extra, once, and begin again in its place."""
    missing = next((cause for cause in _causes(error) if isinstance(cause, MissingExtra)), None)
    script = os.environ.get(INSTALL)
    if missing is None or not script or os.environ.get(_TRIED) == missing.extra:
        return
    print(f"rlplat: {missing.needed_by} needs {missing.package}; it is installed now, once", file=sys.stderr)
    if subprocess.run([script, missing.extra]).returncode == 0:
        import rlplat

        rlplat.shutdown()
        sys.stdout.flush()
        os.environ[_TRIED] = missing.extra
        os.execv(sys.executable, [sys.executable, "-m", "rlplat.cli", *sys.argv[1:]])


def message_of(error: BaseException) -> str:
    """One message without traceback: what went wrong, and what to do now where the loop knows it."""
    if isinstance(error.__cause__, UsageError):  # an actor that could not be created with what the user gave
        text = str(error.__cause__)
    elif isinstance(error, TaskError):
        text = _remote_message(error)
    elif isinstance(error, RlplatError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error} (--debug shows where)"
    return spelled("\n".join([text, *getattr(error, "advice", [])]))  # the notes also hold remote tracebacks


def _remote_message(error: TaskError) -> str:
    """What the user's code raised in the other process, without the traceback that came along."""
    if error.cause is not None:
        named = "" if isinstance(error.cause, RlplatError) else f"{type(error.cause).__name__}: "
        return f"{named}{error.cause} (--debug shows the remote traceback)"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{lines[-1].strip() if lines else type(error).__name__} (--debug shows the remote traceback)"
