"""Values of all sizes come and go through a store, in memory and on disk, while others are held; a dict is a model."""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.errors import ObjectStoreFull
from rlplat.runtime.store.account import create_account
from rlplat.runtime.store.room import Spiller
from rlplat.runtime.store.segments import Store
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.values import Segment
from tests.runtime import specimens

MB = 1 << 20


class Play:
    """Random uses of a creator's and a reader's store."""

    def __init__(self, folder: Path, seed: int) -> None:
        create_account(str(folder), 8 * MB, 0)
        (folder / "spill").mkdir()
        self.folder, self.chooser = folder, random.Random(seed)
        self.writer, self.reader = Store(str(folder), "w1"), Store(str(folder), "driver")
        self.spiller = Spiller(self.writer, threading.Lock())
        self.model: dict[str, tuple[Segment, object]] = {}
        """What the segments in use hold."""
        self.held: list[tuple[str, object]] = []
        """(name, what was read of it): a reader that holds it keeps it from being freed."""
        self.born: list[tuple[Any, Any]] = []
        """Arrays that were born in the store, objects or not, and what is in them."""

    def write(self) -> None:
        value = specimens.value(self.chooser)
        packed = codec.pack(value)
        if not packed.is_large():
            specimens.assert_same(codec.unpack(packed.data, codec.buffers_here(packed)), value)
            return
        try:
            segment = self.writer.write(packed, "driver")
        except ObjectStoreFull:
            self.spiller.spill(MB)
        else:
            assert segment.name not in self.model
            self.model[segment.name] = segment, value

    def bear(self) -> None:
        like = specimens.array(self.chooser)
        if codec.is_out_of_band(np.ascontiguousarray(like)):
            with suppress(ObjectStoreFull):
                array = self.writer.empty(like)
                array[...] = like
                self.born.append((array, array.copy()))

    def seal(self) -> None:
        """Or copy, where it is an object already."""
        if self.born:
            array, content = self.chooser.choice(self.born)
            with suppress(ObjectStoreFull):
                segment = self.writer.write(codec.pack(array), "driver")
                assert segment.name not in self.model
                self.model[segment.name] = segment, content

    def let_born_go(self) -> None:
        if self.born:
            self.born.pop(self.chooser.randrange(len(self.born)))

    def read(self) -> None:
        if self.model:
            name, (segment, value) = self.chooser.choice(list(self.model.items()))
            got = self.reader.read(segment, None)
            specimens.assert_same(got, value)
            self.held.append((name, got))

    def free(self) -> None:
        free = self.model.keys() - {name for name, _ in self.held}
        if free:
            name = self.chooser.choice(sorted(free))
            del self.model[name]
            self.writer.free(name)

    def let_go(self) -> None:
        if self.held:
            self.held.pop(self.chooser.randrange(len(self.held)))

    def step(self) -> None:
        actions = {
            self.write: 50, self.read: 12, self.free: 20, self.let_go: 15,
            self.bear: 12, self.seal: 10, self.let_born_go: 12,
            lambda: self.spiller.spill(self.chooser.randrange(1, MB)): 8,
            self.reader.drop_mappings: 4,
            lambda: self.writer.drop_spares(self.chooser.randrange(MB)): 3,
        }  # fmt: skip
        self.chooser.choices(list(actions), weights=list(actions.values()))[0]()

    def check_valid(self) -> None:
        for name, got in self.held:
            specimens.assert_same(got, self.model[name][1])
        for array, content in self.born:
            specimens.assert_same(array, content)

    def finish(self) -> None:
        """Everything is still there, and then nothing is, on disk or in the account."""
        self.check_valid()
        for segment, value in self.model.values():
            specimens.assert_same(self.reader.read(segment, None), value)
        self.held.clear()
        self.born.clear()
        self.writer.free(*self.model)
        [holding] = [each for each in self.writer.account.holdings() if each.client == "w1"]
        assert (holding.used, holding.spilled) == (holding.spare, 0)
        self.writer.drop_spares(1 << 60)
        assert self.writer.account.used() == 0
        assert sorted(os.listdir(self.folder)) == ["account", "spill"]
        assert os.listdir(self.folder / "spill") == []
        self.reader.close()
        self.writer.close()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_held_stays_as_it_was_while_others_come_and_go(tmp_path: Path, seed: int) -> None:
    play = Play(tmp_path, seed)
    for step in range(500):
        play.step()
        if step % 50 == 0:
            play.check_valid()
    play.finish()
