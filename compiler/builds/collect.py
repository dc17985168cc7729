"""Load spec files: YAML in this process, Python in a worker.

What a Python file declares is remembered in the store, under the digests of all files that were
read to find out, so that an unchanged one is not executed again.

Manifest of a Python spec file: that of a compilation (`manifest`) with `specs`, a text of JSON
whose mappings keep their order, and `env`, label -> value of each variable that they declare.
What it said and printed while it was executed is said each time it is read.

What a file declares may depend on the variables that it declares to see. Those that stand there in
so many words are known before it is executed; where it asked for another one that is set, it is
executed a second time and sees that, too.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cache.format import MANIFESTS
from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.builds.hidden_inputs import HiddenInputs
from pallasc.compiler.inputs.changes import CurrentSources
from pallasc.compiler.inputs.manifest import make_manifest
from pallasc.compiler.toolchain.environment import (
    compiler_variables,
    declared_fields,
    declared_values,
    settled,
)
from pallasc.compiler.toolchain.identity import JAX, recorded
from pallasc.compiler.toolchain.modules import Place
from pallasc.compiler.toolchain.own_modules import COLLECTING, own_digest
from pallasc.compiler.toolchain.toolchain import is_compiler_installed
from pallasc.errors import Location, NotCachedError, PallascError, SpecError
from pallasc.specs.canonical import labelled_key
from pallasc.specs.garbage import collector_paused
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.project import project_env
from pallasc.specs.loading.select import retarget, select
from pallasc.specs.loading.yaml_loader import load_specs
from pallasc.specs.plain_text import one_line
from pallasc.specs.spec import Spec, Variant
from pallasc.specs.variables import why_not_declared
from pallasc.specs.wire import spec_from_json, spec_to_json

if TYPE_CHECKING:
    from pallasc.compiler.workers.diagnostics import Diagnostic
    from pallasc.compiler.workers.messages import Collected
    from pallasc.compiler.workers.pool import Pool
    from pallasc.compiler.workers.tasks import Answer

_SCHEMA = "2"
_TICK_S = 0.5
_OUTPUT_LINES = 20

OnTick = Callable[[str, float], None]
"""Is told which file is being executed, and for how many seconds."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen of specs.

    Attributes:
        specs: all that the files declare.
        variants: those of them that are built.
    """

    specs: tuple[Spec, ...]
    variants: tuple[Variant, ...]


class _ProcessError(SpecError):
    """The process that executed a spec file ended or was stopped before it could answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecReader:
    """Reads spec files, Python files in a process of their own each, within limits.

    Attributes:
        store: remembers what Python files declare; its listener is told, too, of what looks like a
            spec in a folder and is not read.
        timeout_s: how long executing one file may take; None is for ever.
        memory_bytes: what its process may hold; None is what the machine has, 0 any amount.
        frozen: execute nothing.
        on_tick: is told about twice a second which file is being executed, and for how long.
        broken: is given the error of a file whose process died or was stopped at a limit, and the
            other files go on; None has it raised.
    """

    store: Store
    timeout_s: float | None = None
    memory_bytes: int | None = None
    frozen: bool = False
    on_tick: OnTick | None = None
    broken: Callable[[SpecError], None] | None = None
    _withheld: HiddenInputs = field(default_factory=HiddenInputs)

    def specs(self, paths: Sequence[str]) -> list[Spec]:
        """Return the specs that files and folders declare.

        Raises:
            SpecError: one is missing or wrong.
            NotCachedError: one would have to be executed, and `frozen` forbids it.
        """
        specs = load_specs(paths, collect_python=self._read, on_skip=self.store.tell)
        for note in self._withheld.notes():
            self.store.tell(note)
        return specs

    def select(
        self, paths: Sequence[str], targets: Sequence[str] = (), expression: str | None = None
    ) -> Selection:
        """Return what specs declare, and the variants that are chosen of it.

        Args:
            paths: spec files and folders of them.
            targets: models or architectures in place of the specs' own; none changes nothing.
            expression: which variants to take; None takes all.

        Raises:
            SpecError: a spec, a target or the expression is wrong.
            NotCachedError: a Python spec would have to be executed, and `frozen` forbids it.
        """
        specs = self.specs(paths)
        with collector_paused():
            variants = expand(retarget(specs, targets))
        chosen = variants if expression is None else select(variants, expression)
        return Selection(tuple(specs), tuple(chosen))

    def _read(self, path: str) -> list[Spec]:
        """Return what a file declares: what the store remembers, or what its execution tells."""
        digests = FileDigests(self.store.root, trust=self.store.trust)
        folder = str(Path(path).resolve().parent)
        of_project = project_env(folder)
        key = _key(path, digests, of_project)
        why = "it was not read here before"
        for known, unchecked in self._known_keys(path, key, digests, of_project):
            manifest = self.store.get_manifest(known)
            if manifest is None:
                continue
            changed = _changed(manifest, folder, digests, unchecked)
            specs = _remembered(manifest) if changed is None else None
            if specs is not None:
                self._tell(path, _diagnostics(manifest))
                self._withheld.add(Path(path).name, manifest.missed)
                return specs
            if changed is None:
                self.store.put_away(MANIFESTS, known, "it declares no specs", None)
            why = changed or "what is remembered of it is damaged"
        if self.frozen:
            raise NotCachedError(
                f"what this file declares is not in the store: {why}.",
                location=Location(path),
                hint="--frozen does not execute it: build without it, or restore the store.",
            )
        try:
            literal = _literal_env(path)
            collected = self._ask_worker(path, {*of_project, *literal})
            declared = {name for spec in collected.specs for name in spec.env}
            if declared & collected.missed.keys() & {*os.environ}:
                collected = self._ask_worker(path, {*of_project, *declared})
        except _ProcessError as error:
            if self.broken is None:
                raise
            self.broken(error)
            return []
        self._remember(key, collected, digests, declared)
        self._withheld.add(Path(path).name, collected.missed)
        self._tell(path, collected.diagnostics)
        return list(collected.specs)

    def _known_keys(
        self, path: str, key: str, digests: FileDigests, of_project: Iterable[str]
    ) -> Iterator[tuple[str, set[str] | None]]:
        """Yield keys to look under, and what takes the names of packages that are not checked.

        Where no compiler is installed, there is one for each that the store was filled with.
        """
        yield key, None
        if not is_compiler_installed():
            from pallasc.compiler.inputs.remembered_toolchain import remembered_toolchains

            for toolchain in remembered_toolchains(self.store):
                yield _key(path, digests, of_project, toolchain.jax), set()

    def _remember(
        self, key: str, collected: Collected, digests: FileDigests, declared: Iterable[str]
    ) -> None:
        if collected.sources is None or collected.uncached:
            return
        manifest = replace(
            make_manifest("", collected.sources, digests),
            specs=json.dumps([spec_to_json(spec) for spec in collected.specs]),
            env=declared_fields(sorted(declared)),
            diagnostics=[each.to_json() for each in collected.diagnostics],
        )
        self.store.put_manifest(key, manifest)
        digests.save()

    def _tell(self, path: str, diagnostics: Iterable[Diagnostic]) -> None:
        """Say what was said while a file was executed, now or when it was last."""
        for diagnostic in diagnostics:
            self.store.tell(f"while {path} was read: {diagnostic}")

    def _ask_worker(self, path: str, names: Iterable[str]) -> Collected:
        """Have a file executed by a process of its own; return what that found.

        Args:
            path: the file.
            names: environment variables that it gets to see.

        Raises:
            SpecError: the file is wrong, or its process died or was stopped.
        """
        from pallasc.compiler.workers.messages import Collected, Failed

        answer = self._answer(path, names)
        if isinstance(answer.reply, Collected):
            return answer.reply
        if not isinstance(answer.reply, Failed):
            raise _process_error(path, answer)
        self._tell(path, answer.reply.diagnostics)
        error = answer.reply.error
        if answer.reply.out_of_memory:
            # The kernel refused it: whether that or the watch comes first is chance.
            raise _ProcessError(error.message, location=error.location, hint=error.hint)
        raise error

    def _answer(self, path: str, names: Iterable[str]) -> Answer:
        from pallasc.compiler.workers.messages import Collect
        from pallasc.compiler.workers.tasks import Task

        request = Collect(path=path, env=declared_values(names))
        # where the place of a death is looked for
        group = ("", str(Path(path).resolve().parent), ())
        task = Task(0, group, request, "the process that executes this file")
        with self._pool() as pool:
            for _, _, answer in pool.run([task]):
                if answer is not None:
                    return answer
                if self.on_tick is not None:
                    for _, seconds in pool.running():
                        self.on_tick(path, seconds)
        raise SpecError(
            "nothing was heard of the process that executes this file.", location=Location(path)
        )

    def _pool(self) -> Pool:
        from pallasc.compiler.workers.capacity import find_capacity
        from pallasc.compiler.workers.messages import Listen
        from pallasc.compiler.workers.pool import Pool

        memory = self.memory_bytes
        return Pool(
            1,
            settled(os.environ),
            Listen(),  # so that starting Python does not count as the file's time
            timeout_s=self.timeout_s,
            memory_bytes=(find_capacity().memory_bytes(1) if memory is None else memory) or None,
            tick_s=None if self.on_tick is None else _TICK_S,
        )


def _literal_env(path: str) -> set[str]:
    """Return the variables that a file declares in so many words: `env=["KERNEL_TILE"]`."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return set()  # its execution says what is wrong
    keywords = (node for node in ast.walk(tree) if isinstance(node, ast.keyword))
    given = (node.value for node in keywords if node.arg == "env")
    lists = (value.elts for value in given if isinstance(value, ast.List | ast.Tuple))
    texts = (item.value for items in lists for item in items if isinstance(item, ast.Constant))
    return {text for text in texts if isinstance(text, str) and not why_not_declared(text)}


def _changed(
    manifest: Manifest, folder: str, digests: FileDigests, unchecked: set[str] | None
) -> str | None:
    """Return what is no longer as it was when a file was executed, None if everything is."""
    env = manifest.env
    now = declared_fields(label.partition(" ")[2] for label in env)
    other = next((label for label in env if env[label] != now[label]), None)
    if other is not None:
        return f"{other.partition(' ')[2]}, which it declares under env, has another value"
    sources = CurrentSources(Place(folder, (folder,)), digests, unchecked)
    change = sources.first_change(manifest)
    return change.sentences()[0] if change else None


def _key(path: str, digests: FileDigests, of_project: Iterable[str], jax: str | None = None) -> str:
    """Return the key of what a file declares; `jax` is the digest of a JAX that is not here."""
    return labelled_key(
        {
            "collect": _SCHEMA,
            "file": str(Path(path).resolve()),
            "path": path,
            "python": sys.version,
            "jax": recorded(JAX) if jax is None else jax,
            "pallasc": own_digest(digests.digest, COLLECTING),
            **{f"variable {n}": v for n, v in compiler_variables(settled(os.environ)).items()},
            **declared_fields(of_project),
        }
    )


def _diagnostics(manifest: Manifest) -> tuple[Diagnostic, ...]:
    """Return what a manifest says was said; hardly any has something."""
    if not manifest.diagnostics:
        return ()
    from pallasc.compiler.workers.diagnostics import from_json

    return from_json(manifest.diagnostics)


def _remembered(manifest: Manifest) -> list[Spec] | None:
    """Return the specs in a manifest, None if it holds none: it may be a stranger's."""
    try:
        return [spec_from_json(dict(item)) for item in json.loads(manifest.specs)]
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError, PallascError):
        return None


def _process_error(path: str, answer: Answer) -> _ProcessError:
    """Return the error for a file whose process died: how, where, and what it wrote last."""
    message, hint, where = "the process that executes this file gave no answer", None, answer.place
    if answer.error is not None:
        message, hint = answer.error.message, answer.error.hint
        where = answer.error.location or where
    if where is None or where.file == str(Path(path).resolve()):
        where = Location(path, where.line if where else 0)
    lines = answer.output.strip().splitlines()[-_OUTPUT_LINES:]
    if lines:
        message = "\n".join(
            [message, "  output:", *(f"    {one_line(line)}".rstrip() for line in lines)]
        )
    return _ProcessError(message, location=where, hint=hint)
