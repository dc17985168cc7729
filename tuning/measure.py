"""Measure a job: each contest, from its first process to its winner.

The file of results contains everything that is known, so an interrupted run continues where it
stopped. A round is written when it is complete; an interrupted round does not count. Before the
first round, all points are launched, and points whose results differ from the majority's are lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pallasc.errors import PallascError
from pallasc.runtime.device.conditions import Conditions
from pallasc.tuning.contest import Done, Drop, Measure, Rules, decide
from pallasc.tuning.points import Match, PointError, Points, Setup
from pallasc.tuning.referee import OutputReferee
from pallasc.tuning.results import Contest, ResultsFile


class Listener(Protocol):
    """Receives the progress of a run."""

    def began(self, match: Match, number: int, total: int) -> None:
        """A contest begins or continues; it is the `number`th of `total`."""

    def measured(self, match: Match, contest: Contest) -> None:
        """A round is over."""

    def failed(self, match: Match, name: str, why: str) -> None:
        """A point is lost."""

    def done(self, match: Match, contest: Contest) -> None:
        """A contest has ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job.

    Attributes:
        file: the file for results, with earlier results.
        setup: how processes launch and measure.
        rules: when a contest ends.
        conditions: reads the state of the GPU.
        referee: returns what provides the inputs of a contest and judges its outputs.
        listener: receives the progress.
    """

    file: ResultsFile
    setup: Setup
    rules: Rules
    conditions: Conditions
    referee: Callable[[], OutputReferee]
    listener: Listener

    def retry_failed(self, matches: Sequence[Match]) -> None:
        """Reopen every contest with failed points; the reasons of their failures stay in the file.

        Raises:
            SpecError: the results cannot be written.
        """
        for match in matches:
            points = self._contest(match).points
            failed = [name for name in match.entries if name in points and points[name].failed]
            if failed:
                self._add(match, "retry", ids=failed)

    def all(self, matches: Sequence[Match]) -> None:
        """Run every contest that is not done; if all are done, nothing is written.

        Raises:
            DeviceError: the GPU can no longer be used.
            SpecError: the results cannot be written.
        """
        why = "failed"
        try:
            for number, match in enumerate(matches, 1):
                if not self._contest(match).done:
                    self.listener.began(match, number, len(matches))
                    self._one(match)
                    self.listener.done(match, self._contest(match))
            why = "done"
        except KeyboardInterrupt:
            why = "interrupted"
            raise
        except PallascError as error:
            why = error.message
            raise
        finally:
            if self.file.changed or self.file.results.ended != why:
                self.file.add({"kind": "end", "why": why})

    def _contest(self, match: Match) -> Contest:
        empty = Contest(match.kernel, match.key, match.at)
        return self.file.results.contests.get(match.contest_key, empty)

    def _one(self, match: Match) -> None:
        referee = self.referee()
        points = Points(match, self.setup, referee, self.rules.together)
        try:
            self._vote(match, points, referee)
            while True:
                decision = decide(self._contest(match), [*match.entries], self.rules)
                if isinstance(decision, Done):
                    named = {"winner": decision.winner, "why": decision.why}
                    self._add(match, "done", **named)
                    return
                if isinstance(decision, Drop):
                    self._add(match, "dropped", **decision._asdict())
                    points.end(decision.id)
                else:
                    self._round(match, points, decision)
        finally:
            points.close()

    def _vote(self, match: Match, points: Points, referee: OutputReferee) -> None:
        """Launch all points before any is measured, and lose points that differ from the majority.

        An interrupted vote is repeated, and so is a vote if one of its points is retried; points
        that were outvoted before take part again.
        """
        known = dict(self._contest(match).points)
        if all(name in known and not known[name].again for name in match.entries):
            return
        voters = [
            name
            for name in match.entries
            if name not in known or known[name].outvoted or not known[name].failed
        ]
        launched = self._launched(match, points, voters)
        outvoted = referee.outvoted()
        for name in launched:
            if name in outvoted:
                points.end(name)
                self._lose(match, name, PointError(outvoted[name]), outvoted=True)
            elif name not in known or known[name].again or known[name].failed:
                self._note(match, name, "ok", "")

    def _launched(self, match: Match, points: Points, voters: Sequence[str]) -> list[str]:
        """Launch points for a vote; return the points that were not lost."""
        launched = []
        for number, name in enumerate(voters):
            points.start(voters[number:])
            try:
                points.launch(name)
                launched.append(name)
            except PointError as error:
                self._lose(match, name, error)
            if len(voters) > self.rules.together:  # they cannot all stay, so start the next ones
                points.end(name)
        return launched

    def _round(self, match: Match, points: Points, decision: Measure) -> None:
        """Measure each point once; lost points are recorded, and the others count."""
        points.start(decision.ids)  # starting takes most of the time, so processes start together
        times_us, spent_s = {}, self._contest(match).spent_s
        for name in decision.ids:
            try:
                points.launch(name)
                began_s = time.monotonic()
                times_us[name] = points.time_us(name)
                spent_s += time.monotonic() - began_s
            except PointError as error:
                self._lose(match, name, error)
        if times_us:
            known = {"times_us": times_us, "spent_s": round(spent_s, 6), **self.conditions.read()}
            self._add(match, "times", round=decision.round, **known)
        self.listener.measured(match, self._contest(match))

    def _lose(self, match: Match, name: str, error: PointError, *, outvoted: bool = False) -> None:
        """Record a lost point; the run ends if its process cannot be killed.

        Raises:
            DeviceError: the process does not end; the next run skips the point.
        """
        self._note(match, name, "failed", error.why, outvoted=outvoted)
        self.listener.failed(match, name, error.why)
        if error.stuck is not None:
            raise error.stuck

    def _note(
        self, match: Match, name: str, state: str, why: str, *, outvoted: bool = False
    ) -> None:
        entry = match.entries[name]
        self._add(
            match,
            "point",
            id=name,
            params=dict(entry.params),
            target=entry.target,
            artifact=entry.digest,
            state=state,
            why=why,
            **({"outvoted": True} if outvoted else {}),
        )

    def _add(self, match: Match, kind: str, **fields: object) -> None:
        self.file.add({"kind": kind, **match.subject(), **fields})
