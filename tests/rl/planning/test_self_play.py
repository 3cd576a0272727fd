"""Positions of games in progress, and the replay that they go into."""

from __future__ import annotations

import numpy as np
import pytest

from rlplat.rl.envs.board_games.game import CONNECT_FOUR, TIC_TAC_TOE
from rlplat.rl.planning.self_play import GamesInProgress, PositionReplay, Positions, outcomes_of
from tests.rl.envs.test_board_games import board


def test_outcomes_change_sign_with_the_player() -> None:
    assert outcomes_of(1.0, 5).tolist() == [1, -1, 1, -1, 1]
    assert outcomes_of(1.0, 2).tolist() == [-1, 1]
    assert outcomes_of(1.0, 1).tolist() == [1]
    assert (outcomes_of(0.0, 4) == 0).all()


def test_a_game_that_ends_hands_out_its_positions_and_another_begins() -> None:
    """Game 0: x wins with its third stone; game 1 goes on."""
    games = GamesInProgress(TIC_TAC_TOE, 2)
    policies = np.zeros((2, 9), np.float32)
    ended: list[Positions] = []
    for move, (a, b) in enumerate([(0, 8), (3, 7), (1, 6), (4, 0), (2, 1)]):
        assert ended == []
        policies = np.eye(9, dtype=np.float32)[[move, 8 - move]]
        ended = games.play(np.array([a, b]), policies)
    (won,) = ended
    assert won.outcomes.tolist() == [1, -1, 1, -1, 1] and won.policies.argmax(axis=1).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert (won.boards[3] == board("oo. x.. ...")).all() and (won.boards[4] == board("xx. oo. ...")).all()
    assert games.lengths.tolist() == [0, 5] and (games.boards[0] == 0).all()
    again = GamesInProgress(TIC_TAC_TOE, 2)
    again.set_state(games.get_state())
    for each in (games, again):
        for a, b in [(0, 2), (1, 3), (2, 5)]:
            ended = each.play(np.array([a, b]), policies)
        assert each.lengths.tolist() == [3, 8]
        (drawn_or_won,) = each.play(np.array([3, 4]), policies)[-1:]
        assert len(drawn_or_won.outcomes) == 9


@pytest.mark.parametrize("num_games", [1, 3, 5])
def test_another_number_of_games_takes_over_those_that_it_has_room_for(num_games: int) -> None:
    games, resumed = GamesInProgress(TIC_TAC_TOE, 3), GamesInProgress(TIC_TAC_TOE, num_games)
    policies = np.eye(9, dtype=np.float32)
    for moves in ([0, 0, 0], [3, 4, 5], [1, 1, 1], [6, 7, 8]):
        games.play(np.array(moves), policies[moves])
    resumed.set_state(games.get_state())
    kept = min(3, num_games)
    assert resumed.lengths.tolist() == [4] * kept + [0] * (num_games - kept)
    assert (resumed.boards[kept:] == 0).all()
    won = [each.play(np.full(len(each.lengths), 2), policies[: len(each.lengths)]) for each in (games, resumed)]
    assert resumed.lengths.tolist() == [0] * kept + [1] * (num_games - kept)
    assert len(won[1]) == kept
    for expected, one in zip(won[0], won[1], strict=False):
        assert all((a == b).all() for a, b in zip(expected, one, strict=True))


@pytest.mark.parametrize("sizes", [[3], [4], [5], [9], [2, 3, 4, 1], [4, 4, 1]])
def test_the_replay_keeps_the_newest(sizes: list[int]) -> None:
    replay = PositionReplay(CONNECT_FOUR, 4, np.random.SeedSequence(1), use_symmetries=False)
    number = 0
    for size in sizes:
        numbers = np.arange(number, number + size, dtype=np.float32)
        number += size
        boards = np.repeat(numbers[:, None], 42, axis=1).astype(np.int8)
        replay.add(Positions(boards, np.repeat(numbers[:, None], 7, axis=1), numbers))
    drawn = replay.sample(200)
    newest = list(range(max(0, number - 4), number))
    assert len(replay) == len(newest) and sorted(set(drawn.outcomes.tolist())) == newest
    assert (drawn.boards[:, 0] == drawn.outcomes).all() and (drawn.policies[:, 6] == drawn.outcomes).all()
    again = PositionReplay(CONNECT_FOUR, 4, np.random.SeedSequence(2), use_symmetries=False)
    again.set_state(replay.get_state())
    for one, other in zip(replay.sample(50), again.sample(50), strict=True):
        assert (one == other).all()
    for capacity in (1, 3, 7, 30):
        resized = PositionReplay(CONNECT_FOUR, capacity, np.random.SeedSequence(3), use_symmetries=False)
        resized.set_state(replay.get_state())
        assert sorted(set(resized.sample(200).outcomes.tolist())) == newest[-capacity:]
        resized.add(Positions(boards[:1], drawn.policies[:1], np.full(1, 99.0, np.float32)))
        assert sorted(set(resized.sample(200).outcomes.tolist())) == [*newest, 99.0][-capacity:]


def test_positions_are_drawn_mirrored_with_their_moves() -> None:
    position = board("....... ....... ....... ....... ....... xo.....")
    policy = np.arange(7, dtype=np.float32)[None]
    for use_symmetries, expected in ((True, {(1, 0), (0, 6)}), (False, {(1, 0)})):
        replay = PositionReplay(CONNECT_FOUR, 10, np.random.SeedSequence(1), use_symmetries=use_symmetries)
        replay.add(Positions(position, policy, np.ones(1, np.float32)))
        drawn = replay.sample(64)
        seen = {(int(b[35]), int(p[0])) for b, p in zip(drawn.boards, drawn.policies, strict=True)}
        assert seen == expected
    mirrored = drawn.boards[drawn.policies[:, 0] == 6]
    assert (mirrored == position[:, CONNECT_FOUR.symmetries[1][0]]).all()
