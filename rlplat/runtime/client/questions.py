"""What a client asks of the node and waits for (who has a name, what there is, placement groups), and what it tells the
node of runtime environments, once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from rlplat.errors import OptionError
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.envs import spec as runtime_env
from rlplat.runtime.link.link import Link
from rlplat.runtime.options import Options
from rlplat.runtime.placement import PlacementGroup
from rlplat.runtime.process.signals import uninterrupted
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import ErrorInfo, Value


class Questions:
    def __init__(self, link: Link, objects: Objects) -> None:
        self._link, self._objects = link, objects
        self._asked: set[int] = set()
        """Requests that somebody waits for the answers of: others come too late."""
        self._answers: dict[int, Any] = {}
        self._waiting: dict[str, dict[int, Value]] = {}
        """By placement group: which refs of this process have which value once it is there."""
        link.on(messages.Answer, self._on_answer)
        link.on(messages.Cluster, self._on_answer)
        link.on(messages.GroupNews, self._on_group_news)

    def ask(self, make: Callable[[int], Any]) -> Any:
        with self._link.lock:
            self._link.check_open()
            return self._ask(make)

    def _ask(self, make: Callable[[int], Any]) -> Any:
        """Lock held, once: it is given up meanwhile."""
        request = next(self._objects.ids)
        self._asked.add(request)
        try:
            self._link.transport.post(NODE, make(request))
            self._link.wait_until(lambda: request in self._answers, None, "the node's answer")
            return self._answers[request]
        finally:
            self._asked.discard(request)
            self._answers.pop(request, None)

    def await_node(self) -> None:
        """Lock held: the node has heard what was posted before, and what it had to say at once is here."""
        self._ask(lambda request: messages.AskResources(request, False))

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
        with self._link.lock:
            self._link.check_open()
            group = PlacementGroup(f"{self._link.client_id}:g{next(self._objects.ids)}", bundles, strategy, name)
            self._link.transport.post(NODE, messages.CreateGroup(group.id, list(bundles), strategy, name, is_detached))
        # Once this is answered the node knows the group: the handle may travel, and news of it cannot be early.
        try:
            self.resources(available=False)
        except BaseException:  # interrupted: nobody gets the handle
            self.remove_group(group)
            raise
        return group

    def group_ready(self, group: PlacementGroup) -> ObjectRef:
        value = Value(codec.pack(group).data)
        with self._link.lock:
            self._link.check_open()
            self._objects.collect()
            id = next(self._objects.ids)
            self._objects.book.add(id)
            waiting = self._waiting.setdefault(group.id, {})
            waiting[id] = value
            if len(waiting) == 1:
                self._link.transport.post(NODE, messages.FindGroup(group.id))
                self._link.loop.send_now()
            return self._objects.new_ref(id)

    def remove_group(self, group: PlacementGroup) -> None:
        with self._link.lock:
            self._link.check_open()
            self._link.transport.post(NODE, messages.RemoveGroup(group.id))
            self._link.loop.send_now()

    def _on_group_news(self, sender: str, message: messages.GroupNews) -> None:
        for id, value in self._waiting.pop(message.group, {}).items():
            self._objects.fill(id, value if message.error is None else Value(error=message.error))
        self._link.loop.notify()


class ClientEnvs:
    def __init__(self, link: Link) -> None:
        self._link = link
        self.own: runtime_env.Env = {}
        """Of this process; in the driver, of the whole job."""
        self.folder = ""
        """Where snapshots of directories go."""
        self.failed: dict[str, ErrorInfo] = {}
        self._specs: dict[str, str] = {}
        self._token = os.urandom(8).hex()
        """Of this process and cluster: what is remembered in `Options` travels with them."""

    def key(self, options: Options) -> str:
        """The key of the environment that a task or an actor with these options runs in; "" for none.

        May copy directories, and takes the client's lock.
        """
        if not self.own and not options.runtime_env:
            return ""
        known = options.__dict__.get("_env")  # directories are looked at once for each Options
        if known is not None and known[0] == self._token:
            key: str = known[1]
            return key
        node = self._link.transport.node
        if node not in ("", NODE) and {"working_dir", "py_modules"} & {*(options.runtime_env or ())}:
            raise OptionError(
                "runtime_env: a working_dir or py_modules of its own has only what is submitted on the machine of the "
                "program: name them in rlplat.init(runtime_env=...)"
            )
        self.own = runtime_env.prepared(self.own, self.folder)
        env = runtime_env.prepared(runtime_env.merged(self.own, options.runtime_env), self.folder)
        if node == NODE:
            for path in runtime_env.search_path(env):
                runtime_env.archive(path, self._link.session)
        key, spec = runtime_env.key_and_spec(env)
        self._define_once(key, spec)
        options.__dict__["_env"] = (self._token, key)
        return key

    @uninterrupted
    def _define_once(self, key: str, spec: str) -> None:
        if key not in self._specs:
            self._specs[key] = spec
            with self._link.lock:
                self._link.transport.post(NODE, messages.DefineEnv(key, spec))
