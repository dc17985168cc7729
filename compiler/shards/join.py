"""Join the parts of all shards: what they contain together, and whether they fit together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pallasc.cache.store import Store
from pallasc.compiler.inputs.remembered_toolchain import RememberedToolchain, remember_toolchain
from pallasc.compiler.shards.part import Part, read_part
from pallasc.compiler.shards.shard import RULE
from pallasc.errors import CorruptError, NotCachedError, SpecError, ToolError
from pallasc.specs.lock import Component, Entry, Lock, differences, listed

_NAMED = 10


class Joined(NamedTuple):
    """What parts contain together.

    Attributes:
        parts: the parts, by the numbers of their shards.
        order: ids of all variants, in the order of the specs.
        absent: numbers of the shards without a part.
        unbuilt: ids of variants that no part has, in the same order.
        lock: the lock of what was built.
        whole: whether the jobs listed all variants of the specs.
        notes: warnings.
    """

    parts: tuple[Part, ...]
    order: tuple[str, ...]
    absent: tuple[int, ...]
    unbuilt: tuple[str, ...]
    lock: Lock
    whole: bool
    notes: tuple[str, ...]

    @property
    def toolchain(self) -> RememberedToolchain | None:
        """The toolchain that compiled the variants, None if there are none."""
        for part in self.parts:
            toolchain = part.head.toolchain
            if toolchain.identity and part.head.entries:
                return RememberedToolchain(toolchain.identity, toolchain.versions, toolchain.jax)
        return None

    @property
    def missing(self) -> NotCachedError | None:
        """The error of what no part has, None if nothing is missing."""
        if not self.absent and not self.unbuilt:
            return None
        sentences = []
        if self.absent:
            of = self.parts[0].head.shard.of
            plural = "s" if len(self.absent) > 1 else ""
            numbers = listed(f"{number}/{of}" for number in self.absent)
            sentences.append(f"there is no part of shard{plural} {numbers}")
        if self.unbuilt:
            verb = "is" if len(self.unbuilt) == 1 else "are"
            number = f"{len(self.unbuilt):,} variant{'s' if len(self.unbuilt) > 1 else ''}"
            sentences.append(f"{number} {verb} in no part: {_named(self.unbuilt)}")
        hint = "Build these shards, and merge all parts again."
        if not self.absent:
            hint = (
                "The jobs did not see the same variants; give all of them the same specs, files "
                "and options, and build again."
            )
        return NotCachedError(f"{'; '.join(sentences)}.", hint=hint)


def join(files: Sequence[Path]) -> Joined:
    """Read parts, and return what they contain together.

    Raises:
        SpecError: a file does not exist; or parts do not belong together.
        CorruptError: a file is not a part, or damaged; or one action key has two artifacts.
    """
    parts = _distinct([read_part(file) for file in files])
    _check_divisions(parts)
    _check_toolchains(parts)
    specs = _listed(parts)
    _check_owners(parts)
    _check_artifacts(parts)
    built = {name for part in parts for name in part.head.own}
    have = {part.head.shard.number for part in parts}
    entries = {name: entry for part in parts for name, entry in part.head.entries.items()}
    times = {name: taken_s for part in parts for name, taken_s in part.head.costs_s.items()}
    return Joined(
        parts=tuple(parts),
        order=tuple(specs),
        absent=tuple(n for n in range(1, parts[0].head.shard.of + 1) if n not in have),
        unbuilt=tuple(name for name in specs if name not in built),
        lock=Lock(
            _components(parts),
            entries,
            {n: times[n] for n in times if n in entries},
            tables=_tables(parts),
        ),
        whole=all(part.head.whole for part in parts),
        notes=tuple(_notes_on_sources(parts)),
    )


def _tables(parts: Sequence[Part]) -> dict[str, str]:
    """Return the digests of tables, which all jobs read.

    Raises:
        SpecError: two jobs read different ones.
    """
    tables = dict(parts[0].head.tables)
    for part in parts[1:]:
        if part.head.tables != tables:
            raise _do_not_fit(parts[0], part, "their kernels were tuned by different tables")
    return tables


def _distinct(parts: Sequence[Part]) -> list[Part]:
    """Return parts by their shards' numbers; copies of one part count once.

    Raises:
        SpecError: one shard has two different parts.
    """
    by_number: dict[int, Part] = {}
    for part in parts:
        number = part.head.shard.number
        first = by_number.setdefault(number, part)
        if first.digest != part.digest and first.head.shard == part.head.shard:
            raise SpecError(
                f"{first.file} and {part.file} are both of shard {part.head.shard}.",
                hint="Name one of them: that of the last run.",
            )
        if first.head.shard != part.head.shard:
            raise _do_not_fit(first, part, _shards(first, part))
    return [by_number[number] for number in sorted(by_number)]


def _do_not_fit(first: Part, part: Part, how: str, hint: str | None = None) -> SpecError:
    return SpecError(
        f"{first.file} and {part.file} do not belong together: {how}.",
        hint=hint or "Merge the parts of one run.",
    )


def _shards(first: Part, part: Part) -> str:
    return f"one is shard {first.head.shard}, the other {part.head.shard}"


def _check_divisions(parts: Sequence[Part]) -> None:
    """Check that all parts were divided in the same way.

    Raises:
        SpecError: two were not.
    """
    first = parts[0]
    for part in parts:
        if part.head.shard.of != first.head.shard.of:
            raise _do_not_fit(first, part, _shards(first, part))
        if part.head.rule != first.head.rule or part.head.rule != RULE:
            raise _do_not_fit(
                first,
                part,
                "another version of pallasc divided the variants",
                "Use one version of pallasc in all jobs, and for the merge.",
            )
        if part.head.costs != first.head.costs:
            raise _do_not_fit(
                first,
                part,
                "their variants were divided by different costs "
                f"({_short(first.head.costs)}, {_short(part.head.costs)})",
                "Give all jobs the same lock file, or the same file with --costs, and build again.",
            )


def _short(digest: str) -> str:
    return digest[:12] or "none"


def _check_toolchains(parts: Sequence[Part]) -> None:
    """Check that one toolchain compiled all parts.

    Raises:
        SpecError: two differ; the message says in what.
    """
    known = [part for part in parts if part.head.toolchain.components]
    for part in known[1:]:
        first = known[0]
        clauses = differences(first.head.toolchain.components, part.head.toolchain.components)
        if clauses:
            raise _do_not_fit(
                first,
                part,
                f"the first was made with another toolchain: {'; '.join(clauses)} for the second",
                "Use the same image or constraints file in all jobs, and build again.",
            )


def _components(parts: Sequence[Part]) -> Mapping[str, Component]:
    found = (part.head.toolchain.components for part in parts)
    return next(filter(None, found), {})


def _listed(parts: Sequence[Part]) -> dict[str, str]:
    """Return all variants that any job listed, in the order of the first that lists them.

    Raises:
        SpecError: two jobs saw different specs of a variant.
    """
    specs: dict[str, str] = {}
    for part in parts:
        other = [n for n, asked in part.head.listed.items() if specs.setdefault(n, asked) != asked]
        if other:
            raise _do_not_fit(
                parts[0],
                part,
                f"the specs of {_named(other)} differ",
                "Build all shards from the same commit, with the same options.",
            )
    return specs


def _check_owners(parts: Sequence[Part]) -> None:
    """Check that no variant is in two shards.

    Raises:
        SpecError: one is.
    """
    owners: dict[str, Part] = {}
    for part in parts:
        twice = [name for name in part.head.own if owners.setdefault(name, part) is not part]
        if twice:
            first = owners[twice[0]]
            raise _do_not_fit(first, part, f"both shards have {_named(twice)}")


def _check_artifacts(parts: Sequence[Part]) -> None:
    """Check that no two variants have one action key and different artifacts.

    Raises:
        CorruptError: compiling is not deterministic.
    """
    first: dict[str, tuple[str, Entry]] = {}
    differing = []
    for part in parts:
        for name, entry in part.head.entries.items():
            other, seen = first.setdefault(entry.action, (name, entry))
            if seen.artifact != entry.artifact:
                differing.append(
                    f"  {other} and {name}: {seen.artifact[:12]} and {entry.artifact[:12]} under "
                    f"action key {entry.action[:12]}"
                )
    if differing:
        raise _not_deterministic("shards have", differing)


def _not_deterministic(who: str, differing: Sequence[str]) -> CorruptError:
    more = [f"  and {len(differing) - _NAMED:,} more"] if len(differing) > _NAMED else []
    lines = "\n".join([*differing[:_NAMED], *more])
    return CorruptError(
        f"{who} different artifacts under one action key, so compiling is not deterministic:\n"
        f"{lines}",
        hint="See what differs with: pallasc build SPECS --reproduce N",
    )


def _notes_on_sources(parts: Sequence[Part]) -> Iterable[str]:
    """Yield warnings about kernels that shards compiled from different files."""
    seen: dict[str, tuple[str, Part]] = {}
    told = set()
    for part in parts:
        for label, value in part.head.sources.items():
            digest, first = seen.setdefault(label, (value, part))
            if digest != value and label not in told:
                told.add(label)
                kernel, _, source = label.partition(" ")
                yield (
                    f"{kernel} was compiled from different versions of "
                    f"{source.rpartition(':')[2]} in shards {first.head.shard} and "
                    f"{part.head.shard}: build all shards from the same commit"
                )


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    text = ", ".join(names[:_NAMED])
    return f"{text} and {more:,} more" if more > 0 else text


def publish(joined: Joined, store: Store) -> None:
    """Publish what parts contain in a store; ended at any moment, it is valid and has some of it.

    Raises:
        CorruptError: a part is damaged, or the store has another artifact under an action key.
        SpecError: a part can no longer be read.
        ToolError: the store cannot be written.
    """
    for part in joined.parts:
        for _ in part.packs():
            pass  # all of them are verified before anything is published
    conflicts: set[str] = set()
    for part in joined.parts:
        for data in part.packs():
            conflicts.update(_add(part, data, store))
    entries = joined.lock.variants.items()
    differing = [
        f"  {name}: {store.root} has another one under action key {entry.action[:12]}"
        for name, entry in entries
        if entry.action in conflicts
    ]
    if differing:
        raise _not_deterministic("the store and the parts have", differing)
    lost = [name for name, entry in entries if store.get_artifact(entry.action) is None]
    if lost:
        raise CorruptError(
            f"the parts lack artifacts of variants that they name: {_named(lost)}.",
            hint="Build these shards again.",
        )
    if joined.toolchain is not None:
        remember_toolchain(store, joined.toolchain)


def _add(part: Part, data: bytes, store: Store) -> Sequence[str]:
    """Publish a pack; return the action keys under which the store has another record.

    Raises:
        CorruptError: files in the pack are wrong.
        ToolError: the store cannot be written.
    """
    from pallasc.cache.add_pack import add_pack

    try:
        added = add_pack(store, data)
    except CorruptError as error:
        raise CorruptError(f"{part.file}: {error.message}.", hint=error.hint) from error
    if not added.stored:
        raise ToolError(
            f"the store {store.root} cannot be written: {added.reason}.",
            hint="Name another folder with --store or PALLASC_CACHE_DIR.",
        )
    if added.refused:
        first = added.refused[0]
        raise CorruptError(
            f"{part.file}: {len(added.refused):,} of its files are wrong; the first is "
            f"{first.area} {first.name}: {first.reason}.",
            hint="Build that shard again.",
        )
    return added.conflicts
