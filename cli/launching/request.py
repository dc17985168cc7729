"""What `run` and `bench` are asked to launch, checked before any GPU is looked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.errors import SpecError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.spec import ArgTree, Variant


@dataclass(frozen=True, slots=True)
class Meant:
    """The variants that specs or bundles have of what was asked for.

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

        kernels = {one.name for one in self.variants}
        known = self._paths() if files and len(kernels) == 1 else None
        if known is not None:
            names = [one.id for one in self.variants] if len(self.variants) == 1 else [*kernels]
            check_names(files, known, names[0])
        for file in files.values():
            try:
                file.stat()
            except OSError as error:
                raise SpecError(f"{file} cannot be read: {error.strerror}.") from error

    def _paths(self) -> list[str] | None:
        """Return the names of all inputs, None where only compiling will tell."""
        if self.store is None:
            return [binding.path for one in self.artifacts for binding in one.plan.inputs]
        found: list[str] = []
        for variant in self.variants:
            if not isinstance(variant.args, dict):
                return None
            for name, tree in variant.args.items():
                for path in _array_paths(tree, name):
                    if path is None:
                        return None
                    found.append(path)
        return found


def read_meant(
    specs: Sequence[str], *, targets: Sequence[str], expression: str | None, store_root: Path | None
) -> Meant:
    """Return what is meant of specs, or of bundles.

    Args:
        specs: files and folders of specs, or bundles.
        targets: models and architectures that are meant.
        expression: which variants are meant.
        store_root: the store; nothing for a bundle.

    Raises:
        PallascError: as reading does.
    """
    from pallasc.cli.arguments.selection import load_variants, open_store
    from pallasc.cli.launching.bundled import bundle_files, read_bundled

    bundles = bundle_files(specs)
    if bundles:
        pairs = read_bundled(bundles, targets=targets, expression=expression)
        return Meant([variant for variant, _ in pairs], [artifact for _, artifact in pairs], None)
    store = open_store(store_root)
    variants = load_variants(specs, store=store, targets=targets, expression=expression)
    return Meant(variants, [], store)


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
