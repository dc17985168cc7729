"""A dask worker's side: sessions of builds, and the work that it does for them.

The files of a session are laid out below a folder of its own. Its toolchain must be the one of this
machine, part by part, or the work is refused with what differs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store, default_root
from pallasc.compiler.cluster.payloads import Outcome, Result, Session, Work, name_of
from pallasc.compiler.cluster.relayed import Relayed
from pallasc.compiler.cluster.relocated import at_home, below, text_at_home
from pallasc.compiler.cluster.slots import Slot, Timed
from pallasc.compiler.toolchain.components import components
from pallasc.compiler.toolchain.environment import (
    compiler_variables,
    compiling_environment,
    counted_values,
    tool_folder,
)
from pallasc.compiler.toolchain.identity import toolchain_identity
from pallasc.compiler.toolchain.setup import Context, Setup
from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.compiler.workers.capacity import find_capacity
from pallasc.compiler.workers.messages import Introduction, Task
from pallasc.compiler.workers.pool import Pool
from pallasc.compiler.workers.worker_process import PROGRAM
from pallasc.errors import Location, PallascError
from pallasc.specs.lock import differences
from pallasc.specs.settings.build_settings import SALT

_TICK_S = 0.25
_MOST_SESSIONS = 4
"""How many sessions a worker keeps; those that are not in use go first."""


class Host:
    """What a dask worker's process has for builds.

    Args:
        folder: for its files, removed with the worker.
        threads: how many tasks dask runs at the same time.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self._folder, self._threads = folder, threads
        self._lock = threading.Lock()
        self._sessions: dict[str, Place] = {}

    def carry_out(
        self,
        work: Work,
        session: bytes,
        *,
        worker: str,
        is_wanted: Callable[[], bool],
        began: Callable[[], None],
    ) -> Result:
        """Do work.

        Args:
            work: the work.
            session: its session, b"" if the worker should have it.
            worker: the dask worker's address.
            is_wanted: tells whether the build still waits for the result.
            began: called when compiling begins.

        Raises:
            ValueError: the session is not one, or another than the work says.
            Cancelled: nobody waits for it any more.
        """
        try:
            place = self._entered(work.session, session)
        except OSError as error:
            return Result(worker=worker, refused=(_no_place(self._folder, error),))
        if place is None:
            return Result(worker=worker, lacks=True)
        with place:
            try:
                place.prepare()
            except OSError as error:  # it is brought once more when the worker is asked again
                self.forget(work.session)
                return Result(worker=worker, refused=(_no_place(self._folder, error),))
            if place.refused:
                return Result(worker=worker, refused=place.refused)
            began()
            return Result(worker=worker, outcomes=tuple(place.outcomes(work, is_wanted)))

    def forget(self, session: str) -> None:
        """End the processes of a session and remove its files."""
        with self._lock:
            place = self._sessions.pop(session, None)
        if place is not None:
            place.close()

    def close(self) -> None:
        """End all processes and remove all files."""
        for session in list(self._sessions):
            self.forget(session)

    def _entered(self, name: str, session: bytes) -> Place | None:
        """Return the place of a session, which nobody closes before it was left once more."""
        unused: list[Place] = []
        with self._lock:
            place = self._sessions.get(name)
            if place is None and session:
                place = self._sessions[name] = self._made(name, session)
                idle = [each for each, held in self._sessions.items() if not held.users]
                idle = [each for each in idle if each != name]
                surplus = max(0, len(self._sessions) - _MOST_SESSIONS)
                unused = [self._sessions.pop(each) for each in idle[:surplus]]
            if place is not None:
                place.enter()
        for each in unused:
            each.close()
        return place

    def _made(self, name: str, session: bytes) -> Place:
        if name_of(session) != name:
            raise ValueError("a session under the name of another")
        read = Session.from_bytes(session)
        folder = tempfile.mkdtemp(prefix="pallasc-cluster-", dir=self._folder)
        return Place(read, Path(folder).resolve(), self._threads)


class Place:
    """Where the variants of one session are compiled; a context manager, once it is entered.

    Args:
        session: the session.
        folder: an empty folder, which belongs to it.
        threads: how many processes compile at the same time.

    Attributes:
        users: how many threads compile here.
        refused: why nothing is compiled here, in clauses.
    """

    def __init__(self, session: Session, folder: Path, threads: int) -> None:
        self.users = 0
        self.refused: tuple[str, ...] = ()
        self._session, self._folder, self._threads = session, folder, threads
        self._root = str(folder / "root")
        self._lock, self._count = threading.Lock(), threading.Lock()
        self._slots: list[Slot] = []
        self._opened: Setup | None = None
        self._introduction: Introduction | None = None
        self._environment: Mapping[str, str] = {}
        self._prepared = self._closed = False

    def enter(self) -> None:
        """Keep it open until `__exit__`."""
        with self._count:
            self.users += 1

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        with self._count:
            self.users -= 1
            is_over = self._closed and not self.users
        if is_over:
            self._remove()

    def prepare(self) -> None:
        """Lay out the files and compare the toolchain, the first time."""
        with self._lock:
            if not self._prepared:
                self._prepare()
                self._prepared = True

    def outcomes(self, work: Work, is_wanted: Callable[[], bool]) -> list[Outcome]:
        """Return the outcomes of work.

        Raises:
            ValueError: a request is malformed.
            Cancelled: nobody waits for it any more.
        """
        folders = os.pathsep.join(
            below(self._root, folder) if folder else "" for folder in work.folders.split(os.pathsep)
        )
        group = (work.arch, folders, tuple(work.declared.items()))
        requests = [self._here(each) for each in work.requests]
        tasks = [Task(number, group, each) for number, each in enumerate(requests)]
        slot = self._slot(group)
        try:
            timed = slot.carry_out(tasks, self._introduction, is_wanted)
        finally:
            self._give_back(slot)
        timed.sort(key=lambda each: each.answer.task.label)
        return [self._outcome(each) for each in timed]

    def close(self) -> None:
        """End the processes and remove the files, as soon as nobody compiles here."""
        with self._count:
            self._closed = True
            is_over = not self.users
        if is_over:
            self._remove()

    # ---- what a session needs

    def _prepare(self) -> None:
        session = self._session
        self._lay_out()
        if session.program != PROGRAM:
            self._environment = {**os.environ, **session.environment}
            return
        try:
            setup = self._setup()
            self._environment = self._with_path(setup.environment)
            slot = self._warm_slot()  # while the toolchain's files are read
            digests = FileDigests(default_root())
            identity = toolchain_identity(setup.toolchain, digests.digest)
            salt = {name: value for name, value in session.variables.items() if name == SALT}
            variables = compiler_variables(setup.environment) | salt
            context = Context(identity, variables, digests)
            versions = setup.versions_now()
            digests.save()
        except PallascError as error:
            hint = f" {error.hint}" if error.hint else ""
            self.refused = (f"{error.message}{hint}",)
            return
        theirs = components(session.identity, session.versions, session.variables)
        self.refused = tuple(differences(theirs, context.components(versions)))
        if not self.refused:
            store = Store(self._folder / "store")
            self._introduction = replace(Introduction.of(setup, context, store), signing=True)
        else:
            self._slots.remove(slot)
            slot.end()

    def _setup(self) -> Setup:
        """Return the toolchain here, with the build's variables that reach the compiler.

        Raises:
            ToolError: it is incomplete.
        """
        named = self._session.ptxas
        toolchain = find_toolchain(Path(named) if named else None)
        folder, temporary = tool_folder(toolchain)
        counted = counted_values(os.environ)
        own = {name: value for name, value in os.environ.items() if name not in counted}
        environment = compiling_environment({**own, **self._session.environment}, folder)
        self._opened = Setup(toolchain, environment, folder.parent, temporary)
        return self._opened

    def _with_path(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which Python finds the modules that were sent."""
        folders = [below(self._root, folder) for folder in self._session.path]
        path = os.pathsep.join(filter(None, [*folders, environment.get("PYTHONPATH", "")]))
        return {**environment, **({"PYTHONPATH": path} if path else {})}

    def _lay_out(self) -> None:
        session = self._session
        for folder in session.folders:
            Path(below(self._root, folder)).mkdir(parents=True, exist_ok=True)
        for path, digest in session.files.items():
            file = Path(below(self._root, path))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(session.blobs[digest])
        for path, target in session.links.items():
            link = Path(below(self._root, path))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        self._session = replace(session, blobs={})

    # ---- requests and answers

    def _here(self, request: Mapping[str, object]) -> Relayed:
        """Return a request with the spec's folder as it is called here."""
        variant = request.get("variant")
        if isinstance(variant, Mapping):
            base_dir = below(self._root, str(variant.get("base_dir", "")))
            request = {**request, "variant": {**variant, "base_dir": base_dir}}
        return Relayed(body=request)

    def _outcome(self, timed: Timed) -> Outcome:
        """Return an answer with the paths of home."""
        answer = timed.answer
        reply = None
        if answer.reply is not None:
            reply = at_home({**answer.reply.to_json(), "task": None}, self._root)
        return Outcome(
            reply=reply,
            error=None if answer.error is None else _error_at_home(answer.error, self._root),
            output=str(text_at_home(answer.output, self._root)),
            place=_place_at_home(answer.place, self._root),
            stray_bytes=answer.stray_bytes,
            seconds=timed.seconds,
        )

    # ---- slots

    def _slot(self, group: object) -> Slot:
        """Return a free slot, one whose process serves the group if there is one."""
        with self._lock:
            for slot in self._slots:
                if slot.group == group:
                    self._slots.remove(slot)
                    return slot
            if self._slots:
                return self._slots.pop(0)
        return Slot(self._open_pool, self._is_free)

    def _warm_slot(self) -> Slot:
        """Return a slot, one of the free ones, whose process imports JAX."""
        slot = Slot(self._open_pool, self._is_free)
        slot.warm()
        self._slots.append(slot)
        return slot

    def _give_back(self, slot: Slot) -> None:
        with self._lock:
            if not self._closed:
                self._slots.append(slot)
                return
        slot.end()

    def _is_free(self, slot: Slot) -> bool:
        """Tell whether a slot had nothing to do, and take it away."""
        with self._lock:
            is_free = slot in self._slots
            if is_free:
                self._slots.remove(slot)
            return is_free

    def _open_pool(self) -> Pool:
        session, memory = self._session, self._session.memory_bytes
        if memory is None:
            memory = find_capacity().memory_bytes(self._threads)
        return Pool(
            1,
            self._environment,
            timeout_s=session.timeout_s,
            memory_bytes=memory or None,
            tick_s=_TICK_S,
            program=session.program,
            lasting=True,
        )

    def _remove(self) -> None:
        with self._lock:
            slots, self._slots = self._slots, []
        for slot in slots:
            slot.end(wait_s=5)
        if self._opened is not None:
            self._opened.__exit__()
        shutil.rmtree(self._folder, ignore_errors=True)


def _no_place(folder: Path, error: OSError) -> str:
    why = error.strerror or str(error)
    return f"the files of a build cannot be laid out below its folder {folder}: {why}"


def _error_at_home(error: PallascError, root: str) -> PallascError:
    error.message = error.message.replace(root, "")
    error.hint = error.hint and error.hint.replace(root, "")
    error.location = _place_at_home(error.location, root)
    return error


def _place_at_home(place: Location | None, root: str) -> Location | None:
    return place and replace(place, file=place.file.replace(root, ""))
