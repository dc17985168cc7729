"""Make bundles from specs: build, add provenance, and write the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.errors import SpecError
from pallasc.specs.bundle.compress import DEFAULT_LEVEL, check_level

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.collect import Selection
    from pallasc.specs.bundle.manifest import Item, Provenance

Source = Literal["compile", "store", "frozen"]
"""Source of artifacts; see `BundleOptions`."""

SplitBy = Literal["target", "arch"]

FindLines = Callable[[Sequence[VariantResult]], Sequence[bytes]]
"""Returns the source-line record of each of these results (`specs/artifacts/source_lines.py`)."""


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """Options for making bundles.

    Attributes:
        source: handling of variants that are not in the store. `compile` compiles them; `store`
            fails with exit code 3; `frozen` fails, too, and if there is a lock file all variants
            must match it. With `frozen`, the specs must have been read with `frozen`.
        lock: the lock file; `pallasc.lock` in the current folder by default.
        locked: whether there must be a lock file that all variants match.
        split_by: write one bundle per model or architecture, and append its name to the name of the
            output: `kernels-h100-sxm.pallasc`.
        keep_debug: keep debug sections of the cubins.
        keep_ptx: include the PTX, which launching does not need.
        level: compression level of zstd, 1 to 22.
        lines: returns the records of source lines to include; none are included by default.
        build: options of the build; `source` and `locked` override its `frozen` and `locked`.
    """

    source: Source = "compile"
    lock: str | os.PathLike[str] | None = None
    locked: bool = False
    split_by: SplitBy | None = None
    keep_debug: bool = False
    keep_ptx: bool = False
    level: int = DEFAULT_LEVEL
    lines: FindLines | None = None
    build: Options = DEFAULTS


@dataclass(frozen=True, slots=True)
class WrittenBundle:
    """A bundle that was written.

    Attributes:
        path: path of the file.
        target: its model or architecture, if the bundles are split.
        variants: ids of its variants, in the order of the specs.
        size: size of the file in bytes.
        digest: digest of its contents, as `Bundle.digest`.
    """

    path: Path
    target: str | None
    variants: tuple[str, ...]
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class BundleResult:
    """The result of `make_bundle`.

    Attributes:
        report: report of the build; nothing is written unless its `exit_code` is 0.
        bundles: the written bundles, sorted by target.
        provenance: the provenance recorded in the bundles.
    """

    report: Report
    bundles: tuple[WrittenBundle, ...] = ()
    provenance: tuple[Provenance, ...] = ()


def make_bundle(
    selection: Selection,
    output: str | os.PathLike[str],
    *,
    store: Store,
    options: BundleOptions | None = None,
    on_event: OnEvent = lambda event: None,
) -> BundleResult:
    """Write the selected variants into a bundle, either all of them or none.

    Args:
        selection: the variants, and their specs.
        output: the file; an existing one is replaced atomically.
        store: the store to read from and add to.
        options: options of the bundles and of their build.
        on_event: callback for the progress of variants, and for periodic ticks.

    Returns:
        The bundles and the report of the build, which includes failures.

    Raises:
        SpecError: an argument is wrong, or a file cannot be written.
        ToolError: a variant must be compiled, and the toolchain is incomplete.
        NotCachedError: a required lock file is missing, or it is for another toolchain.
    """
    from pallasc.compiler.builds.locked import load_locked
    from pallasc.compiler.builds.provenance import files_read, origins
    from pallasc.specs.bundle.writer import build_bundle

    options = options or BundleOptions()
    check_level(options.level)
    place = Path(output)
    if place.is_dir() or not place.name:
        raise SpecError(f"{place} is a folder.", hint="Name the file to write.")
    frozen = options.source == "frozen" or (options.locked and options.source == "store")
    lock_file = Path(options.lock) if options.lock else None
    constraint = load_locked(lock_file, frozen=frozen, locked=options.locked)
    report = build(
        selection.variants,
        store=store,
        options=replace(options.build, frozen=options.source != "compile", locked=constraint),
        on_event=on_event,
    )
    if report.exit_code:
        return BundleResult(report)
    groups = _groups(report.results, place, options.split_by)
    artifacts = [result.artifact for result in report.results if result.artifact is not None]
    read, written = files_read(report.results, store), [path for _, path, _ in groups]
    provenance = origins(selection.specs, artifacts, read=read, ignore=written)
    lines: Mapping[str, bytes] = {}
    if options.lines is not None:
        ids = [result.variant.id for result in report.results]
        lines = dict(zip(ids, options.lines(report.results), strict=True))
    packed = [
        build_bundle(
            [_item(result, lines.get(result.variant.id)) for result in results],
            keep_debug=options.keep_debug,
            keep_ptx=options.keep_ptx,
            level=options.level,
            provenance=provenance,
        )
        for _, _, results in groups
    ]
    bundles = tuple(
        _written(path, data, results, target)
        for (target, path, results), data in zip(groups, packed, strict=True)
    )
    return BundleResult(report, bundles, provenance)


_Group = tuple[str | None, Path, Sequence[VariantResult]]


def _groups(
    results: Sequence[VariantResult], place: Path, split_by: SplitBy | None
) -> list[_Group]:
    if split_by is None:
        return [(None, place, results)]
    groups: dict[str, list[VariantResult]] = {}
    for result in results:
        target = result.variant.target
        name = target.name if split_by == "target" else target.arch
        groups.setdefault(name, []).append(result)
    return [
        (name, place.with_name(f"{place.stem}-{name}{place.suffix}"), groups[name])
        for name in sorted(groups)
    ]


def _written(
    path: Path, data: bytes, results: Sequence[VariantResult], target: str | None = None
) -> WrittenBundle:
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.user_files import replace_file

    replace_file(path, data)
    ids = tuple(result.variant.id for result in results)
    with open_bundle(data) as bundle:
        return WrittenBundle(path, target, ids, len(data), bundle.digest)


def _item(result: VariantResult, lines: bytes | None) -> Item:
    from pallasc.specs.bundle.manifest import Item

    own, artifact = result.variant, result.artifact
    if artifact is None:
        raise ValueError(f"{own.id} was not compiled")
    params = dict(own.params)
    return Item(own.name, params, artifact, vmap=own.vmap, lines=lines, tuning=own.tuning)
