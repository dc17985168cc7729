"""What a command line names that is compiled already: bundles, and artifacts of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from pallasc.cli.arguments.keys import is_key, whole_key
from pallasc.errors import Location, NotCachedError, SpecError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.spec import Variant


class Compiled(NamedTuple):
    """Something that is compiled already.

    Attributes:
        variant: what is known of it; it has neither function nor reference.
        artifact: the artifact.
        action_key: its action key, None in a bundle.
    """

    variant: Variant
    artifact: Artifact
    action_key: str | None = None


def read_compiled(
    specs: Sequence[str], store: Store, *, targets: Sequence[str], expression: str | None
) -> list[Compiled] | None:
    """Return what is compiled already, None where the arguments of a command are specs.

    Args:
        specs: bundles, or action keys and digests of artifacts, whose first digits are enough.
        store: the store that has the artifacts.
        targets: models and architectures to choose in bundles.
        expression: which variants to choose in bundles.

    Raises:
        SpecError: only some of the paths are bundles or keys, a bundle cannot be read, or a key has
            too few digits.
        NotCachedError: the store has nothing under a key.
        click.UsageError: keys come with options that choose variants.
    """
    from pallasc.cli.launching.request import bundle_files, read_bundled

    if bundles := bundle_files(specs):
        pairs = read_bundled(bundles, targets=targets, expression=expression)
        return [Compiled(variant, artifact) for variant, artifact in pairs]
    if not any(map(is_key, specs)):
        return None
    given = {"-k": expression, "--target": targets}
    if name := next((name for name, value in given.items() if value), None):
        raise click.UsageError(
            f"{name} chooses variants of specs and bundles, and an action key is one variant "
            f"already: leave {name} out."
        )
    return [_stored(spec, store) for spec in specs]


def _stored(text: str, store: Store) -> Compiled:
    from pallasc.cache.inventory import artifacts
    from pallasc.cli.launching.request import carried_variant
    from pallasc.compiler.inputs.lookup import artifact_of_action
    from pallasc.specs.gpus import target_of_record

    if not is_key(text):
        raise SpecError(
            f"{text} is not an action key, and another argument is.",
            hint="Give specs and keys one at a time.",
        )
    key = whole_key(text, store)
    artifact = artifact_of_action(store, key)
    if artifact is None:
        raise NotCachedError(
            f"the store has no artifact {key}.",
            hint="pallasc inspect SPECS --json prints the action keys of variants.",
        )
    listed = artifacts(store, key_prefix=key)
    about = next((about for each in listed for about in each.variants if about.name), None)
    name, params = (about.name, tuple(about.params.items())) if about else (key, ())
    target = target_of_record(artifact.target)
    variant = carried_variant(name, params, target, Location(key))
    return Compiled(variant, artifact, key)
