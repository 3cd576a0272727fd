"""Which refs of this process wait for which placement group. Pure."""

from __future__ import annotations

from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import Value


class GroupBook:
    """Which refs of this process wait for which group."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, Value]] = {}

    def wait_for(self, group: str, id: int, value: Value) -> messages.FindGroup | None:
        """Object `id` has this value once the group is there; what to ask the node, unless that has been asked."""
        waiting = self._waiting.setdefault(group, {})
        waiting[id] = value
        return messages.FindGroup(group) if len(waiting) == 1 else None

    def on_news(self, news: messages.GroupNews) -> dict[int, Value]:
        """The objects that wait no more."""
        waiting = self._waiting.pop(news.group, {})
        return waiting if news.error is None else {id: Value(error=news.error) for id in waiting}
