"""The owner's book: what is freed, when, and never twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.runtime.core.owner.book import Book, after_death
from tests.runtime.core.validity import check_book


def freed(book: Book) -> list[int]:
    ids = [entry.id for entry in book.freed]
    book.freed.clear()
    return ids


def test_the_last_ref_frees_a_value() -> None:
    book = Book()
    book.add(1).num_refs = 2
    book.fill(1, "value")
    book.unref(1)
    assert freed(book) == []
    book.unref(1)
    assert freed(book) == [1]
    assert len(book) == 0


def test_an_object_lives_until_its_task_is_done() -> None:
    book = Book()
    book.add(1)
    book.unref(1)
    assert freed(book) == []
    book.fill(1, "value")
    assert freed(book) == [1]


def test_a_second_result_is_refused() -> None:
    book = Book()
    entry = book.add(1)
    assert book.fill(1, "first") is entry
    assert book.fill(1, "second") is None
    assert entry.value == "first"
    assert book.fill(2, "unknown") is None


@pytest.mark.parametrize("returns_first", [False, True])
def test_news_of_a_loan_may_come_in_any_order(returns_first: bool) -> None:
    book = Book()
    book.add(1)
    book.fill(1, "value")
    book.lend(1, "w1")  # holds it while the third party's news travel
    news = [lambda: book.lend(1, "w2"), lambda: book.returned(1, "w2", 1)]
    book.unref(1)
    for each in reversed(news) if returns_first else news:
        each()
        check_book(book)
        assert freed(book) == []
    book.returned(1, "w1", 1)
    assert freed(book) == [1]


def test_a_peer_whose_death_is_settled_has_returned_everything() -> None:
    book = Book()
    for id in (1, 2, 3):
        book.add(id)
        book.fill(id, "value")
        book.lend(id, "w1", id)
    book.lend(2, "w2")
    for id in (1, 2):
        book.unref(id)
    book.settled("w1")
    assert freed(book) == [1]  # 2 is with w2, 3 has a ref here
    book.settled("w2")
    assert freed(book) == [2]
    check_book(book)


def test_what_the_dead_had_lent_stands_until_their_death_is_settled() -> None:
    book = Book()
    for id in (1, 2, 3):
        book.add(id)
        book.fill(id, "value")
        book.lend(id, "w1")
        book.unref(id)
    # w1 says that it lent 1 and 2 to w2; w2 has 2 and 3, and the news of 3 are lost with w1.
    book.lend(1, "w2", 1, "w1")
    book.lend(2, "w2", 1, "w1")
    book.returned(1, "w1", 1)
    for id in (2, 3):
        book.lend(id, "w2", 1, after_death("w1"))
    assert freed(book) == []
    book.settled("w1")
    assert freed(book) == [1]
    for id in (2, 3):
        book.returned(id, "w2", 1, after_death("w1"))
    assert freed(book) == [2, 3]


def test_a_return_that_comes_ahead_of_its_loan_hides_no_other() -> None:
    book = Book()
    entry = book.add(1)
    book.fill(1, "value")
    book.lend(1, "w2", 1, "w1")
    book.returned(1, "w2", 1, "w3")
    book.unref(1)
    assert freed(book) == []
    assert entry.num_lent() == {"w2": 0}
    book.returned(1, "w2", 1, "w1")
    book.lend(1, "w2", 1, "w3")
    assert freed(book) == [1]


def test_names_that_are_part_of_others_are_others() -> None:
    book = Book()
    book.add(1)
    book.fill(1, "value")
    book.lend(1, "w12")
    book.unref(1)
    book.settled("w1")
    assert freed(book) == []


def test_lending_what_is_gone_says_so() -> None:
    assert Book().lend(7, "w1") is False


PEERS = ["w1", "w2", "w3"]


@settings(max_examples=60, deadline=None, database=None, derandomize=True, report_multiple_bugs=False)
@given(st.data())
def test_random_histories_free_everything_exactly_once(data: st.DataObject) -> None:
    """A model of the truth (real copies per peer) against the book (which hears of them late and in any order)."""
    book = Book()
    local: dict[int, int] = {}
    filled: set[int] = set()
    copies: dict[tuple[int, str], int] = {}  # loans that the peer holds and has not said it returned
    in_flight: list[tuple[int, str, int]] = []  # news about third-party loans (+) and returns (-)
    gone: list[int] = []

    def needed(id: int) -> bool:
        return bool(local.get(id)) or id not in filled or any(key[0] == id and n for key, n in copies.items())

    for step in range(data.draw(st.integers(1, 40))):
        ids = [id for id in local if id not in gone]
        action = data.draw(st.sampled_from(["add", "fill", "unref", "lend", "pass", "return", "deliver", "die"]))
        if action == "add" or not ids:
            local[step] = 1
            book.add(step)
            continue
        id = data.draw(st.sampled_from(ids))
        peer = data.draw(st.sampled_from(PEERS))
        if action == "fill":
            assert (book.fill(id, "v") is not None) == (id not in filled)
            filled.add(id)
        elif action == "unref" and local[id]:
            local[id] -= 1
            book.unref(id)
        elif action == "lend" and local[id]:
            copies[id, peer] = copies.get((id, peer), 0) + 1
            book.lend(id, peer)
        elif action == "pass":  # a borrower hands the ref on: the owner hears of it later
            givers = [p for p in PEERS if copies.get((id, p))]
            if givers and not any(news[0] == id and news[1] in givers for news in in_flight):
                copies[id, peer] = copies.get((id, peer), 0) + 1
                in_flight.append((id, peer, 1))
        elif action == "return" and copies.get((id, peer)):
            # Its own return must not overtake the news of what it handed on: one connection keeps order.
            if not any(news[0] == id and news[2] > 0 for news in in_flight):
                in_flight.append((id, peer, -copies[id, peer]))
                copies[id, peer] = 0
        elif action == "deliver" and in_flight:
            where = data.draw(st.integers(0, len(in_flight) - 1))
            number, who, count = in_flight.pop(where)
            book.lend(number, who, count)
        elif action == "die":
            # (What a peer handed on just before it died is the simulator's affair.)
            if not in_flight:
                for key in [key for key in copies if key[1] == peer]:
                    copies[key] = 0
                book.settled(peer)
        check_book(book)
        for entry in book.freed:
            assert not needed(entry.id), f"{entry.id} was freed while in use"
            gone.append(entry.id)
        book.freed.clear()

    for number, who, count in in_flight:
        book.lend(number, who, count)
    for peer in PEERS:
        book.settled(peer)
    for id in local:
        book.fill(id, "v")
        while book.find(id) is not None and local[id]:
            local[id] -= 1
            book.unref(id)
    gone += freed(book)
    assert sorted(gone) == sorted(local)
    assert len(book) == 0
