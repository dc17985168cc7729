"""Load spec files, YAML in this process and Python in a worker, and select variants.

The store remembers the specs of a Python file with the digests of all files that executing it read,
so an unchanged file is not executed again.

The manifest of a Python spec file has the fields of a compilation's manifest
(`compiler/inputs/manifest.py`) and two more. `specs` is JSON text; its mappings keep their order.
`env` maps the label of each environment variable that the specs declare to a digest of its value.
The warnings of the file are repeated each time the file is read.

The specs may depend on environment variables that the file declares; most others are hidden.
Literal declarations are found by parsing the file before it is executed. Other declarations are
known only afterwards. If the file tried to read such a variable, and it is set, the file is
executed again with all declared variables.

Shards divide the variants of a build between machines that do not communicate. A digest of a
variant's id determines its shard, so all jobs need the same list of variants.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from pallasc.cache.format import MANIFESTS
from pallasc.cache.manifests import Diagnostic, Manifest
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.builds.report import hidden_notes
from pallasc.compiler.inputs.sources import CurrentSources
from pallasc.compiler.toolchain.identity import COLLECTING, JAX, own_digest, versions_text
from pallasc.compiler.toolchain.modules import Place
from pallasc.compiler.toolchain.setup import declared_fields, key_variables, settled
from pallasc.compiler.toolchain.toolchain import is_compiler_installed
from pallasc.errors import Location, NotCachedError, PallascError, SpecError
from pallasc.specs.canonical import labelled_key
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_specs, project_env
from pallasc.specs.settings import why_not_declared
from pallasc.specs.spec import Spec, Variant, spec_from_json
from pallasc.specs.spelling import one_line

if TYPE_CHECKING:
    from pallasc.compiler.workers.messages import Collected, Failed, Reply

_SCHEMA = "2"
_TICK_S = 0.5
_OUTPUT_LINES = 20

OnTick = Callable[[str, float], None]
"""Called with the file being executed, and the seconds so far."""


class Selection(Struct, frozen=True):
    """Specs and the variants selected from them.

    Attributes:
        specs: all specs of the files.
        variants: the selected variants.
    """

    specs: tuple[Spec, ...]
    variants: tuple[Variant, ...]


class _ProcessError(SpecError):
    """The process that executed a spec file ended or was stopped before it could answer."""


class SpecReader(Struct, frozen=True, kw_only=True):
    """Reads spec files; each Python file is executed in a separate process.

    Attributes:
        store: store that remembers the specs of Python files; its listener also receives notes on
            files in a folder that look like specs and are skipped.
        timeout_s: time limit for executing one file; None for no limit.
        memory_bytes: memory limit of the process; None for the machine's memory, 0 for no limit.
        frozen: whether executing a file is an error.
        frozen_by: the option or setting that requires `frozen`, for messages.
        on_tick: called about twice a second while a file is executed.
        broken: called with the error of a file whose process died or exceeded a limit; the other
            files are still read. If None, the error is raised.
        programs: whether to read the programs of the files instead of their kernels.
        remembered: keys of the stored manifests of the files that were read.
    """

    store: Store
    timeout_s: float | None = None
    memory_bytes: int | None = None
    frozen: bool = False
    frozen_by: str = "--frozen"
    on_tick: OnTick | None = None
    broken: Callable[[SpecError], None] | None = None
    programs: bool = False
    remembered: list[str] = field(default_factory=list)
    _missed: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    def specs(self, paths: Sequence[str]) -> list[Spec]:
        """Return the specs that files and folders declare.

        Raises:
            SpecError: a file is missing or wrong.
            NotCachedError: a file must be executed, and `frozen` forbids that.
        """
        try:
            specs = load_specs(paths, collect_python=self._read)
            wanted = [spec for spec in specs if bool(spec.programs) == self.programs]
            if specs and not wanted:
                raise _only_others(specs[0])
            return wanted
        finally:
            for note in hidden_notes(self._missed):
                self.store.tell(note)

    def select(
        self,
        paths: Sequence[str],
        targets: Sequence[str] = (),
        expression: str | None = None,
        *,
        all_points: bool = False,
    ) -> Selection:
        """Read specs and select variants.

        Args:
            paths: spec files and folders.
            targets: models or architectures that replace the specs' own; if empty, those are kept.
            expression: expression that selects variants; None selects all.
            all_points: include every point of tuned kernels, not only those that a table uses.

        Raises:
            SpecError: a spec, a target, or the expression is wrong.
            NotCachedError: a Python spec would have to be executed, and `frozen` forbids it.
        """
        specs = self.specs(paths)
        requested = specs
        if targets:
            from pallasc.specs.loading.select import retarget

            requested = retarget(specs, targets)
        variants = expand(requested, all_points=all_points, tell=self.store.tell)
        if expression is not None:
            from pallasc.specs.loading.select import select

            variants = select(variants, expression)
        return Selection(tuple(specs), tuple(variants))

    def _read(self, path: str) -> list[Spec]:
        """Return the specs of a Python file, from the store or by executing it."""
        digests = FileDigests(self.store.root, trust=self.store.trust)
        folder = str(Path(path).resolve().parent)
        of_project = project_env(folder)
        key = _key(path, digests, of_project)
        why = "it has not been read with this store"
        for key_of_file, unchecked in self._known_keys(path, key, digests, of_project):
            for name, manifest in self.store.sets(key_of_file):
                if not self.store.believes(name, manifest):
                    continue
                changed = _changed(manifest, folder, digests, unchecked)
                specs = _remembered(manifest) if changed is None else None
                if specs is not None:
                    self._tell(path, manifest.diagnostics)
                    self._missed.append((Path(path).name, manifest.missed))
                    self.remembered.append(name)
                    return specs
                if changed is None:
                    self.store.put_away(MANIFESTS, name, "it has no specs", None)
                why = changed or "its manifest is damaged"
        if self.frozen:
            raise NotCachedError(
                f"the specs of this file are not in the store: {why}.",
                location=Location(path),
                hint=f"With {self.frozen_by}, the file is not executed. Build without "
                f"{self.frozen_by}, or restore the store.",
            )
        try:
            literal = _literal_env(path)
            collected = self._ask_worker(path, {*of_project, *literal})
            specs = _parsed(collected.specs)
            declared = {name for spec in specs for name in spec.env}
            if declared & collected.missed.keys() & {*os.environ}:
                collected = self._ask_worker(path, {*of_project, *declared})
                specs = _parsed(collected.specs)
        except _ProcessError as error:
            if self.broken is None:
                raise
            self.broken(error)
            return []
        self._remember(key, collected, digests, declared)
        self._missed.append((Path(path).name, collected.missed))
        self._tell(path, collected.diagnostics)
        return specs

    def _known_keys(
        self, path: str, key: str, digests: FileDigests, of_project: Iterable[str]
    ) -> Iterator[tuple[str, set[str] | None]]:
        """Yield the keys under which a file's specs may be stored, each with a set or None.

        The first key is for the installed packages, all of which must be unchanged (None). Without
        an installed compiler, there is another key for each remembered toolchain; packages that are
        not installed then do not count as changed, and their names are added to the set.
        """
        yield key, None
        if not is_compiler_installed():
            from pallasc.compiler.inputs.manifest import remembered_toolchains

            for toolchain in remembered_toolchains(self.store):
                yield _key(path, digests, of_project, toolchain.jax), set()

    def _remember(
        self, key: str, collected: Collected, digests: FileDigests, declared: Iterable[str]
    ) -> None:
        if collected.sources is None or collected.uncached:
            return
        from pallasc.compiler.inputs.manifest import make_manifest

        manifest = replace(
            make_manifest("", collected.sources, digests),
            specs=json.dumps(collected.specs),
            env=declared_fields(sorted(declared)),
            diagnostics=collected.diagnostics,
        )
        self.remembered.append(self.store.put_set(key, manifest))
        digests.save()

    def _tell(self, path: str, diagnostics: Iterable[Diagnostic]) -> None:
        """Report the warnings from executing a file, now or earlier."""
        for diagnostic in diagnostics:
            self.store.tell(f"while {path} was read: {diagnostic}")

    def _ask_worker(self, path: str, names: Iterable[str]) -> Collected:
        """Execute a file in a separate process.

        Args:
            path: the file.
            names: environment variables that are passed on.

        Raises:
            SpecError: the file is wrong, or its process died or was stopped.
        """
        from pallasc.compiler.workers.messages import Collected, Failed

        reply = self._reply(path, names)
        if not isinstance(reply, Failed):
            return reply.require(Collected)
        if reply.died:
            raise _process_error(path, reply)
        self._tell(path, reply.diagnostics)
        self._missed.append((Path(path).name, reply.missed))
        error = reply.error
        if reply.out_of_memory:
            # An allocation failed before the supervisor noticed the limit; both count as the same
            # error.
            raise _ProcessError(error.message, location=error.location, hint=error.hint)
        raise error

    def _reply(self, path: str, names: Iterable[str]) -> Reply:
        from pallasc.compiler.workers.messages import Collect, Task
        from pallasc.compiler.workers.pool import Pool

        request = Collect(path=path, env={name: os.environ.get(name) for name in names})
        # The folder is used to locate a crash.
        group = ("", str(Path(path).resolve().parent), ())
        task = Task(0, group, request, "the process that executes this file")
        with Pool(
            1,
            settled(os.environ),
            timeout_s=self.timeout_s,
            memory_bytes=self.memory_bytes,
            tick_s=None if self.on_tick is None else _TICK_S,
        ) as pool:
            for _, _, reply in pool.run([task]):
                if reply is not None:
                    return reply
                if self.on_tick is not None:
                    for _, seconds in pool.running():
                        self.on_tick(path, seconds)
        raise SpecError(
            "the process that executes this file sent no answer.", location=Location(path)
        )


def _only_others(spec: Spec) -> SpecError:
    kinds = ["programs and no kernel", "kernels and no program"]
    return SpecError(
        f"these specs declare {kinds[not spec.programs]}.",
        location=spec.location,
        hint="pallasc build compiles kernels; pallasc warm compiles programs.",
    )


def _literal_env(path: str) -> set[str]:
    """Return the variables that a file declares literally: `env=["KERNEL_TILE"]`."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return set()  # executing it reports the error
    keywords = (node for node in ast.walk(tree) if isinstance(node, ast.keyword))
    values = (node.value for node in keywords if node.arg == "env")
    lists = (value.elts for value in values if isinstance(value, ast.List | ast.Tuple))
    texts = (item.value for items in lists for item in items if isinstance(item, ast.Constant))
    return {text for text in texts if isinstance(text, str) and not why_not_declared(text)}


def _changed(
    manifest: Manifest, folder: str, digests: FileDigests, unchecked: set[str] | None
) -> str | None:
    """Return the first change since a file was executed, None if nothing has changed."""
    env = manifest.env
    now = declared_fields(label.partition(" ")[2] for label in env)
    changed = next((label for label in env if env[label] != now[label]), None)
    if changed is not None:
        return f"{changed.partition(' ')[2]}, which it declares under env, has another value"
    sources = CurrentSources(Place(folder, (folder,)), digests, unchecked)
    change = sources.first_change(manifest)
    return change.sentence if change else None


def _key(path: str, digests: FileDigests, of_project: Iterable[str], jax: str | None = None) -> str:
    """Return the key of a file's specs.

    Args:
        path: the file.
        digests: computes digests of files.
        of_project: environment variables that the project declares.
        jax: the versions of JAX's packages in a remembered toolchain; None for the installed ones.
    """
    return labelled_key(
        {
            "collect": _SCHEMA,
            "file": str(Path(path).resolve()),
            "path": path,
            "python": sys.version,
            "jax": versions_text(JAX) if jax is None else jax,
            "pallasc": own_digest(digests.digest, COLLECTING),
            **{f"variable {n}": v for n, v in key_variables(settled(os.environ)).items()},
            **declared_fields(of_project),
        }
    )


def _remembered(manifest: Manifest) -> list[Spec] | None:
    """Return the specs in a manifest, None if malformed: the store may be untrusted."""
    with suppress(SpecError, TypeError, ValueError, RecursionError):
        return _parsed(json.loads(manifest.specs))
    return None


def _parsed(specs: Iterable[Mapping[str, Any]]) -> list[Spec]:
    """Convert specs back from the objects that `spec_to_json` made.

    These come from the store or a process that ran the user's code, and may be malformed.

    Raises:
        SpecError: the objects are malformed.
    """
    try:
        return [spec_from_json(dict(spec)) for spec in specs]
    except (AttributeError, LookupError, TypeError, ValueError, PallascError) as error:
        raise SpecError(f"the declarations of this file are damaged: {error}.") from error


def _process_error(path: str, failed: Failed) -> _ProcessError:
    """Return the error for a file whose process died, with location and last output."""
    message, hint = failed.error.message, failed.error.hint
    where = failed.error.location or failed.place
    if where is None or where.file == str(Path(path).resolve()):
        where = Location(path, where.line if where else 0)
    lines = failed.output.strip().splitlines()[-_OUTPUT_LINES:]
    if lines:
        message = "\n".join(
            [message, "  output:", *(f"    {one_line(line)}".rstrip() for line in lines)]
        )
    return _ProcessError(message, location=where, hint=hint)


# ---- shards

MOST_SHARDS = 1000
_SHARD = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", re.ASCII)


class Shard(NamedTuple):
    """One of several shards: its number from 1, and the number of shards."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


class Share(NamedTuple):
    """The variants of one shard.

    Attributes:
        shard: the shard.
        variants: its variants, in the order of the list.
        others: number of variants in all other shards.
    """

    shard: Shard
    variants: tuple[Variant, ...]
    others: int


def parse_shard(text: str) -> Shard:
    """Parse a shard such as `3/8`.

    Raises:
        SpecError: the text is not a shard.
    """
    found = _SHARD.fullmatch(text)
    shard = Shard(int(found[1]), int(found[2])) if found else Shard(0, 0)
    if not 1 <= shard.number <= shard.of <= MOST_SHARDS:
        raise SpecError(
            f"--shard must be K/N, such as 3/8, got {text!r}.",
            hint="K is the number of this shard, counted from 1; N is the number of shards, at "
            f"most {MOST_SHARDS:,}.",
        )
    return shard


def share_of(shard: Shard, variants: Sequence[Variant]) -> Share:
    """Return the variants of a shard, from the variants of all shards."""
    own = tuple(variant for variant in variants if _shard_number(variant, shard.of) == shard.number)
    return Share(shard, own, len(variants) - len(own))


def _shard_number(variant: Variant, shards: int) -> int:
    found = hashlib.sha256(variant.id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(found[:8], "big") % shards + 1
