"""Write the one kernel of a bundle as a flat plan: `python write_plan.py BUNDLE PLAN`."""

import sys
from pathlib import Path

import pallasc
from pallasc.specs.artifacts.flat_plan import flat_plan

(kernel,) = pallasc.open_bundle(sys.argv[1]).values()
(variant,) = kernel.variants
Path(sys.argv[2]).write_bytes(flat_plan(variant.artifact, name=variant.id))
