"""What `pallasc tune pick` reads beside results: specs with their tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.specs.loading.tune_results import Results
    from pallasc.specs.loading.tuned_table import Table
    from pallasc.specs.spec import Spec, Variant
    from pallasc.specs.tuned.pick import TunedKernel
    from pallasc.specs.tuning import Tune


class TunedSpecs(NamedTuple):
    """The tuned kernels of specs for one model of GPU.

    Attributes:
        variants: all of their points on it, by kernel.
        tunes: what each says of its tuning.
        files: the table of each, as messages show it.
        paths: the table of each.
        tables: the content of each table, by its path.
    """

    variants: dict[str, list[Variant]]
    tunes: dict[str, Tune]
    files: dict[str, str]
    paths: dict[str, Path]
    tables: dict[Path, dict[str, Table]]

    def kernels(self) -> dict[str, TunedKernel]:
        """Return what decides about each kernel."""
        from pallasc.specs.tuned.pick import TunedKernel

        found = {}
        for name, tune in self.tunes.items():
            table = self.tables[self.paths[name]].get(name)
            ids = {variant.id for variant in self.variants[name]}
            points = [dict(variant.params) for variant in self.variants[name]]
            keys = {tuple(point[by] for by in tune.by) for point in points}
            found[name] = TunedKernel(tune, ids, table.rows if table is not None else (), keys)
        return found


def read_specs(
    reader: SpecReader, paths: Sequence[str], output: Path | None, files: Sequence[Results]
) -> tuple[TunedSpecs, list[Results]]:
    """Return the tuned kernels of specs, and the results with the names of their models.

    Args:
        reader: reads the specs.
        paths: files and folders of them.
        output: the table of all kernels; None for those that their specs name.
        files: the results.

    Raises:
        SpecError: a spec or a table is wrong, or none tunes a kernel.
    """
    from pallasc.errors import SpecError
    from pallasc.specs.loading.matrix import expand
    from pallasc.specs.tuned.pick import with_model

    specs = [spec for spec in reader.specs(paths) if spec.tune is not None]
    if not specs:
        raise SpecError(
            f"no kernel of {', '.join(paths)} has 'tune'.",
            hint="Say in the spec what is tuned, plan and measure it.",
        )
    models = [model for spec in specs for model in spec.models.values()]
    files = [with_model(file, models) for file in files]
    found = TunedSpecs({}, {}, {}, {}, {})
    declared = {(spec.location, spec.name): spec for spec in specs}
    for variant in expand(specs, all_points=True):
        if variant.target.name == files[0].start.model:
            _add(found, declared[variant.location, variant.name], variant, output)
    return found, files


def _add(found: TunedSpecs, spec: Spec, variant: Variant, output: Path | None) -> None:
    """Add a point of a spec, and with the first one the spec's table."""
    from pallasc.errors import SpecError
    from pallasc.specs.loading.tuned_points import table_shown
    from pallasc.specs.loading.tuned_table import read_table

    name, tune = spec.name, spec.tune
    if tune is None:
        return
    if name not in found.tunes:
        path = Path(spec.base_dir, tune.table) if output is None else output
        shown = table_shown(spec, tune) if output is None else str(output)
        if path not in found.tables:
            found.tables[path] = dict(read_table(path, shown))
        found.tunes[name], found.paths[name] = tune, path
        found.files[name], found.variants[name] = shown, []
    elif found.tunes[name] != tune:
        raise SpecError(
            f"two specs tune {name} on {variant.target.name} in different ways.",
            location=spec.where("tune"),
            hint="Write the same 'tune' in both.",
        )
    found.variants[name].append(variant)
