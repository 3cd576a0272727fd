"""A small experiment for tests of trial schedulers: it does what they say, and can be killed and restored.

play = Play(lambda: ASHA(max_progress=9, reduction_factor=3))
play.add(4)                                             # trials 0 ... 3
assert play.report(0, 1, 0.5) == Continue()             # trial 0 at progress 1: what is to become of it
"""

from rlplat.tune.schedulers import Pause, Resume, Stop
from rlplat.tune.trial import Trial, TrialState


class Play:
    def __init__(self, make):
        self.make = make
        self.scheduler = make()
        self.scheduler.open(0, None)
        self.trials = []
        self.is_closed = False

    def add(self, count=1):
        for _ in range(count):
            trial = Trial(len(self.trials), {}, {}, seed=0, state=TrialState.RUNNING)
            self.trials.append(trial)
            self.scheduler.add(trial)

    def close(self):
        """No more trials."""
        self.is_closed = True
        self.scheduler.no_more_trials()
        return self.settle()

    def report(self, number, progress, score):
        """The verdict, carried out; `due` is carried out as well."""
        trial = self.record(number, progress, score)
        verdict = self.scheduler.judge(trial)
        if isinstance(verdict, Pause):
            trial.state = TrialState.PAUSED
        elif isinstance(verdict, Stop):
            self.end(number, TrialState.COMPLETE if verdict.is_complete else TrialState.STOPPED)
        return verdict

    def record(self, number, progress, score):
        trial = self.trials[number]
        assert trial.state is TrialState.RUNNING, f"{number} is {trial.state}"
        trial.history.append((progress, score))
        trial.values, trial.progress = (score,), progress
        trial.step += 1
        self.scheduler.record(trial, progress, score)
        return trial

    def end(self, number, state):
        self.trials[number].state = state
        self.scheduler.end(self.trials[number])

    def settle(self):
        """{number: verdict} of what is due, carried out."""
        found = {}
        while due := self.scheduler.due():
            for number, verdict in due:
                assert number not in found, "given twice"
                assert self.trials[number].state is TrialState.PAUSED
                found[number] = verdict
                if isinstance(verdict, Resume):
                    self.trials[number].state = TrialState.RUNNING
                else:
                    self.end(number, TrialState.STOPPED)
        return found

    def restore(self):
        """Killed, and begun again from what was stored."""
        self.scheduler = self.make()
        self.scheduler.open(0, None)
        for trial in self.trials:
            self.scheduler.add(trial)
            for progress, score in trial.history:
                self.scheduler.record(trial, progress, score)
            if trial.state.has_ended:
                self.scheduler.end(trial)
        if self.is_closed:
            self.scheduler.no_more_trials()

    def states(self):
        return [trial.state.value for trial in self.trials]

    def running(self):
        return [trial.number for trial in self.trials if trial.state is TrialState.RUNNING]
