"""A client's side of runtime environments: keys for shapes, and what the node is told of them, once."""

from __future__ import annotations

import os

from rlplat.runtime.envs import spec as runtime_env
from rlplat.runtime.link.link import Link
from rlplat.runtime.options import Options
from rlplat.runtime.process.signals import uninterrupted
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import ErrorInfo


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
        self.own = runtime_env.prepared(self.own, self.folder)
        env = runtime_env.prepared(runtime_env.merged(self.own, options.runtime_env), self.folder)
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
