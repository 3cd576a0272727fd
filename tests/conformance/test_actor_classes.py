"""What an actor class may have, and what its handles can do."""

from __future__ import annotations

import abc
from typing import Any, Generic, TypeVar

import pytest

import rlplat

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


def test_what_a_method_returns_is_a_copy(backend: str) -> None:
    class Actor:
        def __init__(self) -> None:
            self.items = [1]

        def read(self) -> list[int]:
            return self.items

    actor = rlplat.remote(Actor).remote()
    rlplat.get(actor.read.remote()).append(2)
    assert rlplat.get(actor.read.remote()) == [1]


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
