"""What `run` and `bench` are asked to launch, checked before any GPU is looked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallasc.cli.terminal.output import refusing
from pallasc.errors import Location, SpecError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.gpus import Target
    from pallasc.specs.spec import ArgTree, Variant


@dataclass(frozen=True, slots=True)
class Request:
    """The variants of specs or bundles that are to be launched.

    Attributes:
        variants: all of them, whatever they were compiled for.
        artifacts: what was compiled, in the same order; nothing for specs.
        store: where the artifacts of specs lie; None for bundles.
    """

    variants: list[Variant]
    artifacts: list[Artifact]
    store: Store | None

    def check_inputs(self, files: Mapping[str, Path]) -> None:
        """Check that the files of inputs are there, and the inputs as far as their names are known.

        Raises:
            ArgumentError: the kernel takes no array of this name.
            SpecError: a file does not exist.
        """
        from pallasc.cli.launching.operands import check_names

        kernels = {variant.name for variant in self.variants}
        paths = self._paths() if files and len(kernels) == 1 else None
        if paths is not None:
            name = self.variants[0].id if len(self.variants) == 1 else self.variants[0].name
            check_names(files, paths, name)
        for file in files.values():
            with refusing(file, doing="read"):
                file.stat()

    def _paths(self) -> list[str] | None:
        """Return the names of all inputs, None where only compiling will tell."""
        if self.store is None:
            return [binding.path for artifact in self.artifacts for binding in artifact.plan.inputs]
        paths: list[str] = []
        for variant in self.variants:
            if not isinstance(variant.args, dict):
                return None
            for name, tree in variant.args.items():
                for path in _array_paths(tree, name):
                    if path is None:
                        return None
                    paths.append(path)
        return paths


def read_request(
    specs: Sequence[str],
    *,
    targets: Sequence[str],
    expression: str | None,
    store_root: Path | None,
    all_points: bool = False,
) -> Request:
    """Return the variants of specs, or of bundles, that are to be launched.

    Args:
        specs: files and folders of specs, or bundles.
        targets: models and architectures to choose.
        expression: which variants to choose.
        store_root: the store; nothing for a bundle.
        all_points: whether to take every point of tuned kernels of specs.

    Raises:
        PallascError: as reading does.
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.compiler.builds.collect import SpecReader

    bundles = bundle_files(specs)
    if bundles:
        pairs = read_bundled(bundles, targets=targets, expression=expression)
        return Request([variant for variant, _ in pairs], [artifact for _, artifact in pairs], None)
    store = open_store(store_root)
    selection = SpecReader(store=store).select(specs, targets, expression, all_points=all_points)
    return Request(list(selection.variants), [], store)


def _array_paths(tree: ArgTree, path: str) -> Iterator[str | None]:
    """Yield the names of the arrays in an argument as a compiled kernel calls them.

    None stands for those of a node that a call gives, which only compiling tells.
    """
    if isinstance(tree, dict) and "$call" in tree:
        yield None
    elif isinstance(tree, dict) and "$tuple" in tree:
        yield from _array_paths(tree["$tuple"], path)
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _array_paths(item, f"{path}.{key}")
    elif isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from _array_paths(item, f"{path}.{number}")
    elif tree is not None:
        yield path


def bundle_files(specs: Sequence[str]) -> list[Path]:
    """Return the paths of a command as bundles; none where they are specs.

    Raises:
        SpecError: only some of them are bundles.
    """
    from pallasc.specs.bundle.source import is_bundle

    bundles = [Path(spec) for spec in specs if is_bundle(Path(spec))]
    if bundles and len(bundles) < len(specs):
        other = next(spec for spec in specs if not is_bundle(Path(spec)))
        for path in (*bundles, Path(other)):
            if not path.exists():
                raise SpecError(f"{path}: there is no such file.")
        raise SpecError(
            f"{bundles[0]} is a bundle and {other} is not: one command takes either bundles or "
            "specs.",
            hint="Use a command for each.",
        )
    return bundles


def read_bundled(
    files: Sequence[Path], *, targets: Sequence[str], expression: str | None
) -> list[tuple[Variant, Artifact]]:
    """Return the chosen variants of bundles, and what was compiled.

    The bundles stay open: what is launched is read when it is loaded.

    Raises:
        SpecError: a file cannot be read, or nothing in it is chosen.
        CorruptError: one is damaged, or not signed as this machine demands.
        ToolError: a signature is demanded, and the cryptography package is missing.
    """
    from pallasc.cli.bundle.options import selected_entries
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.trust import read_policy
    from pallasc.specs.gpus import target_of_record

    policy = read_policy()
    pairs = []
    for file in files:
        bundle = open_bundle(file)
        policy.check(bundle)
        for entry in selected_entries(bundle, targets=targets, expression=expression):
            artifact = bundle.artifact(entry)
            target = target_of_record(artifact.target)
            variant = carried_variant(entry.name, entry.params, target, Location(str(file)))
            pairs.append((variant, artifact))
    return pairs


def carried_variant(
    name: str, params: Iterable[tuple[str, Any]], target: Target, place: Location
) -> Variant:
    """Return what a bundle or a store knows of a variant; it has neither function nor reference."""
    from pallasc.specs.spec import Budget, Variant

    return Variant(
        name=name,
        params=tuple(params),
        target=target,
        entry="",
        args={},
        static={},
        reference=None,
        tolerance=None,
        budget=Budget(),
        files=(),
        location=place,
        base_dir="",
    )
