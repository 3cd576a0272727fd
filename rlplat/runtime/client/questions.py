"""What a client asks of the node and waits for: who has a name, what there is, placement groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlplat.runtime.client.calls import NODE
from rlplat.runtime.core.owner.group_book import GroupBook
from rlplat.runtime.placement import PlacementGroup
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.values import Value

if TYPE_CHECKING:
    from rlplat.runtime.client.client import Client


class Questions:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked: set[int] = set()
        """Requests that somebody waits for the answers of: others come too late."""
        self._answers: dict[int, Any] = {}
        self._groups = GroupBook()
        client._loop.handlers |= {
            messages.Answer: self._on_answer,
            messages.Cluster: self._on_answer,
            messages.GroupNews: self._on_group_news,
        }

    def ask(self, make: Callable[[int], Any]) -> Any:
        client = self._client
        with client._lock:
            client._check_open()
            request = next(client._objects.ids)
            self._asked.add(request)
            try:
                client._transport.post(NODE, make(request))
                client._wait_until(lambda: request in self._answers, None, "the node's answer")
                return self._answers[request]
            finally:
                self._asked.discard(request)
                self._answers.pop(request, None)

    def _on_answer(self, sender: str, message: Any) -> None:
        if message.request in self._asked:
            self._answers[message.request] = message

    def resources(self, available: bool) -> dict[str, float]:
        return self.ask(lambda request: messages.AskResources(request, available)).amounts

    def cluster(self) -> messages.Cluster:
        answer: messages.Cluster = self.ask(messages.AskCluster)
        return answer

    def create_group(
        self, bundles: tuple[tuple[tuple[str, float], ...], ...], strategy: str, name: str, is_detached: bool
    ) -> PlacementGroup:
        client = self._client
        with client._lock:
            client._check_open()
            group = PlacementGroup(
                f"{client.client_id}:g{next(client._objects.ids)}", bundles, strategy, name
            )
            client._transport.post(
                NODE, messages.CreateGroup(group.id, list(bundles), strategy, name, is_detached)
            )
        # Once this is answered the node knows the group: the handle may travel, and news of it cannot be early.
        try:
            self.resources(available=False)
        except BaseException:  # interrupted: nobody gets the handle
            self.remove_group(group)
            raise
        return group

    def group_ready(self, group: PlacementGroup) -> ObjectRef:
        client = self._client
        value = Value(codec.pack(group).data)
        with client._lock:
            client._check_open()
            client._objects.collect()
            id = next(client._objects.ids)
            client._objects.book.add(id)
            ask = self._groups.wait_for(group.id, id, value)
            if ask is not None:
                client._transport.post(NODE, ask)
                client._loop.send_now()
            return client._objects.new_ref(id)

    def remove_group(self, group: PlacementGroup) -> None:
        client = self._client
        with client._lock:
            client._check_open()
            client._transport.post(NODE, messages.RemoveGroup(group.id))
            client._loop.send_now()

    def _on_group_news(self, sender: str, message: messages.GroupNews) -> None:
        client = self._client
        for id, value in self._groups.on_news(message).items():
            client._objects.fill(id, value)
        client._loop.notify()
