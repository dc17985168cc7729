"""Run real builds while system calls below their store fail or lie, and judge each.

Usage: build_faults.py ROOT CASES SEED, with the library made from faults.c preloaded
(`LD_PRELOAD`), which the builds inherit. Prints JSON: the cases in which something really was
spoilt, how they ended, how many calls of each kind were spoilt, and everything that was wrong. With
0 cases those of `CHOSEN` are run, otherwise random ones.

A build must end with exit code 0 and the artifact that the build without faults gave, whether it
comes out of the store or around it; and what it leaves must be that artifact or a miss.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults import CALLS, LIES, Case, roll

from pallasc.cache.store import Store
from pallasc.cache.verify import verify

SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: add
    entry: pallasc.specs.library.elementwise:add
    args: {x: "f32[1024]", y: "f32[1024]"}
    static: {block_size: 1024}
"""
FULL, EMPTY, NO_RECORD = "full", "empty", "no record"
ALWAYS = 1_000_000
HEAL_EVERY = 8
CHOSEN = (
    (FULL, Case("utime", "EACCES", "fail", 0, ALWAYS)),
    (FULL, Case("open", "EMFILE", "fail", 0, ALWAYS)),
    (NO_RECORD, Case("write", "ENOSPC", "fail", 0, ALWAYS)),
)


class Builds:
    """A spec of one kernel, the store it was built into, and what came out."""

    def __init__(self, root: Path) -> None:
        self.spec, self.store = root / "kernels.yaml", root / "store"
        self.full, self.told = root / "full", root / "told"
        self.armed = Path(f"{os.environ['LD_PRELOAD']}.armed")
        self.spec.write_text(SPEC)
        first = self.build()
        self.key = json.loads(first.stdout)["variants"][0]["action_key"]
        self.digest = outcome(first)[1]
        self.record = Store(self.store).get_artifact(self.key).digest
        self.store.rename(self.full)

    def build(self) -> subprocess.CompletedProcess[str]:
        """Build the spec."""
        command = [sys.executable, "-P", "-m", "pallasc", "build", self.spec, "--json", "-j", "1"]
        return subprocess.run(
            [*map(str, command), "--store", str(self.store)],
            capture_output=True, text=True, check=False, timeout=300,
            env={**os.environ, "PALLASC_REQUIRE_STORE": "0"},  # the default is 1 where `CI` is set
        )  # fmt: skip

    def run(self, state: str, case: Case) -> tuple[int, str, list[str]]:
        """Build under faults; return how many calls were spoilt, how it ended, what was wrong."""
        self._set_up(state)
        self._arm(case)
        done = self.build()
        self.armed.unlink()
        spoilt = self.told.stat().st_size if self.told.exists() else 0
        status, digest = outcome(done)
        wrong = []
        if (done.returncode, digest) != (0, self.digest) or "Traceback" in done.stderr:
            wrong.append(f"exit code {done.returncode}, artifact {digest}: {done.stderr[-1500:]}")
        return spoilt, status, [f"{state}, {case}: {text}" for text in [*wrong, *self._left()]]

    def _left(self) -> list[str]:
        """Return what is wrong about what a build left; a miss is right."""
        store = Store(self.store)
        found = store.get_artifact(self.key, verify=True)
        wrong = [] if found is None or found.digest == self.record else ["a wrong record is left"]
        if not verify(store, repair=True).ok:
            wrong.append("what is left cannot be repaired")
        return wrong

    def heals(self) -> list[str]:
        """Build without faults, twice; return what is wrong."""
        done = [outcome(self.build()), outcome(self.build())]
        healed = done[0][1] == self.digest and done[1] == ("hit", self.digest)
        return [] if healed else [f"the store did not heal: {done}"]

    def _set_up(self, state: str) -> None:
        self.told.unlink(missing_ok=True)
        shutil.rmtree(self.store, ignore_errors=True)
        if state != EMPTY:
            shutil.copytree(self.full, self.store)
        if state == NO_RECORD:
            Store(self.store).path("ac", self.key).unlink()

    def _arm(self, case: Case) -> None:
        """Say in the file beside the library what the processes of a build are to suffer."""
        error = getattr(errno, case.error)
        how = (CALLS.index(case.call), error, LIES.index(case.lie), case.passed, case.spoilt)
        self.armed.write_text(f"{self.store}\n{' '.join(map(str, how))}\n{self.told}\n")


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[str, str | None]:
    """Return how a variant ended, and the digest of its artifact."""
    try:
        (variant,) = json.loads(done.stdout)["variants"]
    except (ValueError, KeyError):
        return "nothing", None
    return variant["status"], variant["digest"]


def rolled(dice: random.Random) -> Iterator[tuple[str, Case]]:
    """Give random cases for ever."""
    while True:
        yield dice.choice([FULL, NO_RECORD, EMPTY]), roll(dice)


def main() -> None:
    """Run the cases; the store that every few of them leave must heal."""
    builds, wanted = Builds(Path(sys.argv[1])), int(sys.argv[2])
    dice = random.Random(int(sys.argv[3]))
    by_kind, ended, wrong = Counter[str](), Counter[str](), list[str]()
    for state, case in rolled(dice) if wanted else CHOSEN:
        spoilt, status, found = builds.run(state, case)
        wrong += found
        if not spoilt:
            wrong += [] if wanted else [f"{state}, {case}: nothing was spoilt"]
            continue
        ended[status] += 1
        by_kind[f"{case.call} {case.error if case.lie == 'fail' else case.lie}"] += spoilt
        if ended.total() % HEAL_EVERY == 0:
            wrong += builds.heals()
        if ended.total() == wanted:
            break
    told: dict[str, Any] = {
        "cases": ended.total(), "injected": by_kind.total(), "ended": dict(ended),
        "by_kind": dict(sorted(by_kind.items())), "wrong": wrong[:20],
    }  # fmt: skip
    print(json.dumps(told))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
