"""What an actor class may have, and what its handles can do."""

from __future__ import annotations

import abc
import collections
from typing import Any, Generic, TypeVar

import pytest

import rlplat
from rlplat.errors import ActorDied

T = TypeVar("T")


def test_inherited_and_overridden_methods(backend: str) -> None:
    class Base:
        def __init__(self, x: int) -> None:
            self.x = x

        def who(self) -> str:
            return f"base {self.x}"

        def only_base(self) -> str:
            return self.who()

    class Derived(Base):
        def __init__(self, x: int) -> None:
            super().__init__(x + 1)

        def who(self) -> str:
            return f"derived over {super().who()}"

    actor = rlplat.remote(Derived).remote(1)
    assert rlplat.get(actor.who.remote()) == "derived over base 2"
    assert rlplat.get(actor.only_base.remote()) == "derived over base 2"


def test_static_and_class_methods(backend: str) -> None:
    class Actor:
        count = 5

        @staticmethod
        def static(x: int) -> int:
            return x + 1

        @classmethod
        def of_class(cls, x: int) -> int:
            return cls.count + x

        def uses_both(self) -> int:
            return self.static(1) + self.of_class(1)

    actor = rlplat.remote(Actor).remote()
    assert rlplat.get(actor.uses_both.remote()) == 8
    assert rlplat.get(actor.static.remote(1)) == 2
    assert rlplat.get(actor.of_class.remote(2)) == 7


def test_abstract_generic_and_multiple_bases(backend: str) -> None:
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self) -> float: ...

    class Named:
        def name(self) -> str:
            return type(self).__name__

    class Square(Shape, Named, Generic[T]):
        def area(self) -> float:
            return 4.0

    actor = rlplat.remote(Square).remote()
    assert rlplat.get([actor.area.remote(), actor.name.remote()]) == [4.0, "Square"]


def test_methods_that_begin_with_an_underscore_can_be_called(backend: str) -> None:
    class Actor:
        def _private(self, x: int) -> int:
            return x

    assert rlplat.get(rlplat.remote(Actor).remote()._private.remote(3)) == 3


def test_dunder_call_is_a_method(backend: str) -> None:
    class Actor:
        def __call__(self, x: int) -> int:
            return 2 * x

    class Heir(Actor):
        def __len__(self) -> int:
            return 4

    for kind in (Actor, Heir):
        assert rlplat.get(rlplat.remote(kind).remote().__call__.remote(3)) == 6
    heir = rlplat.remote(Heir).remote()
    assert rlplat.get(heir.__len__.remote()) == 4
    assert rlplat.get(rlplat.get(rlplat.put([heir]))[0].__len__.remote()) == 4
    with pytest.raises(AttributeError):
        heir.__getitem__.remote(0)


def test_properties_work_inside_and_are_no_methods_of_the_handle(backend: str) -> None:
    class Actor:
        @property
        def value(self) -> int:
            return 7

        def read(self) -> int:
            return self.value

    actor = rlplat.remote(Actor).remote()
    assert rlplat.get(actor.read.remote()) == 7
    with pytest.raises(AttributeError):
        actor.value.remote()


def test_attributes_are_out_of_reach(backend: str) -> None:
    class Actor:
        def __init__(self) -> None:
            self.data = 1

        def f(self) -> None: ...

    actor = rlplat.remote(Actor).remote()
    with pytest.raises(AttributeError):
        actor.data
    with pytest.raises(AttributeError):
        actor.no_such_method.remote()


def test_a_class_without_init_and_one_with_defaults(backend: str) -> None:
    class Bare:
        def f(self) -> int:
            return 1

    class Defaults:
        def __init__(self, a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> None:
            self.got = (a, b, rest, c, more)

        def read(self) -> tuple:
            return self.got

    assert rlplat.get(rlplat.remote(Bare).remote().f.remote()) == 1
    make = rlplat.remote(Defaults)
    assert rlplat.get(make.remote(1).read.remote()) == (1, 2, (), 3, {})
    assert rlplat.get(make.remote(1, 5, 6, c=7, d=8).read.remote()) == (1, 5, (6,), 7, {"d": 8})


def test_constructor_arguments_may_be_refs(backend: str) -> None:
    class Actor:
        def __init__(self, a: int, b: int) -> None:
            self.total = a + b

        def read(self) -> int:
            return self.total

    @rlplat.remote
    def make(x: int) -> int:
        return x

    assert rlplat.get(rlplat.remote(Actor).remote(make.remote(1), b=rlplat.put(2)).read.remote()) == 3


def test_constructor_arguments_that_do_not_fit_are_an_error(backend: str) -> None:
    class Actor:
        def __init__(self, a: int) -> None: ...

        def f(self) -> None: ...

    with pytest.raises((TypeError, ActorDied)):
        rlplat.get(rlplat.remote(Actor).remote().f.remote())


def test_attributes_of_the_class_are_the_processs(backend: str) -> None:
    class Actor:
        created = 0

        def __init__(self) -> None:
            type(self).created += 1

        def read(self) -> int:
            return self.created

    actors = [rlplat.remote(Actor).remote() for _ in range(2)]
    counts = rlplat.get([actor.read.remote() for actor in actors])
    assert counts == ([1, 2] if backend == "inproc" else [1, 1]) or backend == "inproc"


def test_methods_with_arguments_of_every_kind(backend: str) -> None:
    class Actor:
        def f(self, a: int, /, b: int, *rest: int, c: int = 3, **more: Any) -> tuple:
            return a, b, rest, c, more

    actor = rlplat.remote(Actor).remote()
    assert rlplat.get(actor.f.remote(1, rlplat.put(2), 4, c=5, d=rlplat.put(6))) == (1, 2, (4,), 5, {"d": 6})
    assert rlplat.get(actor.f.remote(1, b=2)) == (1, 2, (), 3, {})


def test_a_method_argument_that_does_not_fit_is_a_type_error_and_the_actor_lives(backend: str) -> None:
    class Actor:
        def f(self, a: int) -> int:
            return a

    actor = rlplat.remote(Actor).remote()
    with pytest.raises(TypeError):
        rlplat.get(actor.f.remote())
    with pytest.raises(TypeError):
        rlplat.get(actor.f.remote(1, 2))
    assert rlplat.get(actor.f.remote(3)) == 3


def test_what_a_method_returns_is_a_copy(backend: str) -> None:
    class Actor:
        def __init__(self) -> None:
            self.items = [1]

        def read(self) -> list[int]:
            return self.items

    actor = rlplat.remote(Actor).remote()
    rlplat.get(actor.read.remote()).append(2)
    assert rlplat.get(actor.read.remote()) == [1]


def test_a_method_argument_is_a_copy(backend: str) -> None:
    class Actor:
        def append(self, items: list[int]) -> list[int]:
            items.append(0)
            return items

    items = [1]
    actor = rlplat.remote(Actor).remote()
    assert rlplat.get(actor.append.remote(items)) == [1, 0]
    assert items == [1]


def test_an_actor_makes_actors_and_hands_them_out(backend: str) -> None:
    class Child:
        def __init__(self, x: int) -> None:
            self.x = x

        def read(self) -> int:
            return self.x

    class Parent:
        def __init__(self, n: int) -> None:
            self.children = [rlplat.remote(Child).remote(i) for i in range(n)]

        def total(self) -> int:
            return sum(rlplat.get([child.read.remote() for child in self.children]))

        def hand_out(self) -> list:
            return self.children

    parent = rlplat.remote(Parent).remote(3)
    assert rlplat.get(parent.total.remote()) == 3
    children = rlplat.get(parent.hand_out.remote())
    assert rlplat.get([child.read.remote() for child in children]) == [0, 1, 2]


def test_an_actor_submits_tasks_and_returns_their_refs(backend: str) -> None:
    @rlplat.remote
    def square(x: int) -> int:
        return x * x

    class Actor:
        def submit(self, n: int) -> list:
            return [square.remote(i) for i in range(n)]

    actor = rlplat.remote(Actor).remote()
    assert rlplat.get(rlplat.get(actor.submit.remote(4))) == [0, 1, 4, 9]


def test_a_handle_has_a_telling_repr(backend: str) -> None:
    class Telling:
        def f(self) -> None: ...

    assert "Telling" in repr(rlplat.remote(Telling).remote())


def test_handles_are_keys_and_members(backend: str) -> None:
    class Actor:
        def f(self) -> int:
            return 1

    a, b = (rlplat.remote(Actor).remote() for _ in range(2))
    refs = {a: a.f.remote(), b: b.f.remote()}
    assert len(refs) == 2
    assert a in refs
    counts = collections.Counter([a, a, b])
    assert counts[a] == 2


def test_a_bound_method_can_be_kept(backend: str) -> None:
    class Actor:
        def __init__(self) -> None:
            self.n = 0

        def add(self, x: int) -> int:
            self.n += x
            return self.n

    actor = rlplat.remote(Actor).remote()
    add = actor.add
    assert rlplat.get([add.remote(1), add.remote(2)]) == [1, 3]


def test_subclassing_a_remote_class_is_refused(backend: str) -> None:
    """actors, "inheritance from actor classes": decorate the derived class, not its base."""

    @rlplat.remote
    class Base:
        pass

    with pytest.raises(TypeError):

        class Derived(Base):  # type: ignore[misc, valid-type]
            pass


def test_the_end_of_an_actor_made_in_a_list_is_its_own(backend: str) -> None:
    class Actor:
        def __init__(self, i: int) -> None:
            self.i = i

        def read(self) -> int:
            return self.i

    actors = [rlplat.remote(Actor).remote(i) for i in range(4)]
    rlplat.kill(actors[1])
    assert rlplat.get([actor.read.remote() for i, actor in enumerate(actors) if i != 1]) == [0, 2, 3]
    with pytest.raises(ActorDied):
        rlplat.get(actors[1].read.remote())
