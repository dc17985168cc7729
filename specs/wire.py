"""Specs and variants as plain JSON, to pass them between processes of one version.

Mappings keep their order, so do not sort the keys of the text. This form is never stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from pallasc.specs.arrays import array_tree
from pallasc.specs.spec import Spec, Variant, plain_args


def spec_to_json(spec: Spec) -> dict[str, object]:
    """Return a spec as plain data."""
    data: dict[str, object] = msgspec.to_builtins(spec, enc_hook=dict)  # other kinds of mappings
    return data


def spec_from_json(data: Mapping[str, Any]) -> Spec:
    """Return the spec that was passed to `spec_to_json`.

    Raises:
        ValueError: the data is malformed.
    """
    spec = msgspec.convert(data, Spec)
    if spec.tune is None:
        return spec
    from pallasc.specs.tuning import Tune

    return replace(spec, tune=msgspec.convert(spec.tune, Tune))


def variant_to_json(variant: Variant) -> dict[str, object]:
    """Return a variant as plain data, without its table data and positions."""
    args = plain_args(variant.args, in_order=True)
    check = variant.check
    if check is not None:
        check = replace(check, args=plain_args(check.args, in_order=True))
    plain = replace(variant, args=args, check=check, tuning=None, locations={})
    data: dict[str, object] = msgspec.to_builtins(plain)
    return data


def variant_from_json(data: Mapping[str, Any]) -> Variant:
    """Return the variant that was passed to `variant_to_json`.

    Raises:
        SpecError, ValueError: the data is malformed.
    """
    check = data["check"]
    if check is not None:
        check = {**check, "args": array_tree(check["args"])}
    return msgspec.convert({**data, "args": array_tree(data["args"]), "check": check}, Variant)
