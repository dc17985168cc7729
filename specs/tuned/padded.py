"""Keys that need no variant of their own: the one that their bucket is named after serves them.

A call whose arrays are smaller than a variant's is padded, where the spec says so. The kernel then
takes as long as it does for the full arrays, which is compared with the best of the key's own
variants. Both were measured apart, so bounds of their medians are compared, not paired rounds. What
the copies cost that pad arrays and cut results was not measured and is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pallasc.specs.templates import Scalar
from pallasc.specs.tuned.measured import MeasuredKey
from pallasc.specs.tuning import Tune


def may_pad(key: Sequence[Scalar], around: Sequence[Scalar], tune: Tune) -> bool:
    """Tell whether calls of a key may be padded to those of its bucket's."""
    differing = [name for name, own, end in zip(tune.by, key, around, strict=True) if own != end]
    return bool(differing) and all(name in tune.pad for name in differing)


def is_served(key: MeasuredKey, end: MeasuredKey, use: str, tune: Tune, percent: float) -> bool:
    """Tell whether a variant of a bucket's end surely serves a smaller key within the limit.

    Args:
        key: the smaller key.
        end: the key that the bucket is named after.
        use: the configuration of the variant, by `use_id`.
        tune: what may be padded.
        percent: the limit.
    """
    if use not in end.options or not may_pad(key.key, end.key, tune):
        return False
    return end.options[use].surely_us[1] <= (1 + percent / 100) * key.best.surely_us[0]
