"""Messages that cannot be handled: dropped and counted, with a line on stderr, and the process goes on.

Every message that a process hears goes through `Dropped.deliver`. What a handler raises is the message's fault (it is
senseless, or from another version) or a bug of ours; either way it must not end the process for all others. What leaves
books half written is a `RuntimeFault`, and does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from rlplat.errors import RuntimeFault
from rlplat.given.say import say
from rlplat.runtime.process.signals import is_of_handler
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import NODE

DROPS_FILE = "RLPLAT_DROPS_FILE"
"""Environment variable: a file to which the lines go as well. (The tests' own: there each line is a failure.)"""
_MOST_LINES = 20
_MOST_CHARS = 300

Handler = Callable[[str, Any], object]


class Dropped:
    def __init__(self, client_id: str) -> None:
        self.count = 0
        self.last = ""
        """What was said of the last one."""
        self._client_id = client_id

    def deliver(self, sender: str, batch: list[Any], handler_of: Callable[[type], Handler | None]) -> None:
        """Have each message of a frame handled."""
        from_node = messages.FROM_NODE
        for message in batch:
            kind = type(message)
            if kind in from_node and sender != NODE:
                self.add(f"{kind.__name__} from", sender, "only the node may say that")
                continue
            handler = handler_of(kind)
            if handler is None:
                self.add(f"{kind.__name__} from", sender, f"it is not for {self._client_id}")
                continue
            try:
                handler(sender, message)
            except (OSError, MemoryError, RuntimeFault):
                raise  # the machine's fault or ours, not the message's: who waits must hear of it
            except Exception as error:
                if is_of_handler(error):
                    raise
                self.add(f"{kind.__name__} from", sender, f"{type(error).__name__}: {error}", error)

    def add(self, what: str, peer: str, why: str, error: BaseException | None = None) -> None:
        """Count what is not handled, and say so. `what`: "Done from", "a message to"; `peer`: a client id."""
        self.count += 1
        where = ""
        if error is not None and error.__traceback__ is not None:
            last = error.__traceback__
            while last.tb_next is not None:
                last = last.tb_next
            where = f" ({os.path.basename(last.tb_frame.f_code.co_filename)}:{last.tb_lineno})"
        self.last = f"{self._client_id} dropped {what} {peer!r:.50}: {why:.{_MOST_CHARS}}{where}"
        if self.count <= _MOST_LINES:
            rest = "; later ones are only counted" if self.count == _MOST_LINES else ""
            say(f"{self.last}{rest}")
        path = os.environ.get(DROPS_FILE)
        if path:
            with open(path, "a") as file:
                file.write(f"{self.last}\n")
