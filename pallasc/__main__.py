"""Run the command line with `python -m pallasc`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from pallasc.cli.main import main

    sys.exit(main())
