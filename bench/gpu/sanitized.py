"""Launch one kernel of a packed folder once: `sanitized.py FOLDER VARIANT`."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Launch it, and say so."""
    sys.path.insert(0, str(Path(__file__).parent))
    from carried import read_variants
    from references import make_inputs

    variant = next(
        variant for variant in read_variants(Path(sys.argv[1])) if variant.id == sys.argv[2]
    )
    variant.kernel()(**make_inputs(variant))
    print("launched")


if __name__ == "__main__":
    main()
