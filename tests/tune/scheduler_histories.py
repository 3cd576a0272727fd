"""Random histories for every trial scheduler: whatever happens, a scheduler that is killed and restored after any
event says the same as one that was not."""

from hypothesis import strategies as st

from rlplat.tune.schedulers import Continue, Pause
from rlplat.tune.trial import TrialState
from tests.tune.scheduler_play import Play

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["report", "report", "report", "report", "report", "add", "add", "return", "crash"]),
        st.integers(0, 99),  # which of the running trials
        st.sampled_from([1, 1, 1, 2, 9]),  # how far it jumps
        st.integers(0, 4),  # score: few values, so that there are ties
    ),
    max_size=60,
)


def check_restored_after_each_event(make, events, closed_at):
    """Two plays of the same events; the second is restored after each. They must say the same."""
    steady, killed = Play(make), Play(make)
    for index, (kind, which, jump, score) in enumerate(events):
        said = [_act(play, kind, which, jump, score) for play in (steady, killed)]
        assert said[0] == said[1], (index, kind)
        if index == closed_at and not steady.is_closed:
            assert steady.close() == killed.close()
        killed.restore()
        assert killed.settle() == {}, "a verdict was given twice, or was forgotten until the restart"
        assert steady.states() == killed.states()


def check_comes_to_an_end(play, score_of, longest):
    """After `no_more_trials` every trial ends, whoever fails: nobody waits for ever. Returns the progress of each."""
    play.close()
    for _ in range(10_000):
        running = play.running()
        if not running:
            break
        number = running[0]
        history = play.trials[number].history
        progress = (history[-1][0] if history else 0) + 1
        if progress > longest:
            play.end(number, TrialState.COMPLETE)
        else:
            play.report(number, progress, score_of(number))
        play.settle()
    assert all(trial.state.has_ended for trial in play.trials), play.states()
    return [trial.history[-1][0] if trial.history else 0 for trial in play.trials]


def _act(play, kind, which, jump, score):
    running = play.running()
    if kind == "add" or not running:
        if not play.is_closed:
            play.add()
        return None, play.settle()
    number = running[which % len(running)]
    if kind == "report":
        history = play.trials[number].history
        verdict = play.report(number, (history[-1][0] if history else 0) + jump, float(score))
        text = type(verdict).__name__ if isinstance(verdict, Continue | Pause) else verdict
        return text, play.settle()
    play.end(number, TrialState.COMPLETE if kind == "return" else TrialState.FAILED)
    return None, play.settle()
