"""The command line: `python -m pallasc`, and the console script."""

from __future__ import annotations

import gc
import os
import sys

_COLLECT_AFTER = 1_000_000
"""Allocations between garbage collections: nearly all objects last until the command ends."""


def main() -> int:
    """Run the command line and return its exit code; Ctrl-C never prints a traceback."""
    try:
        gc.set_threshold(_COLLECT_AFTER)
        from pallasc.cli.main import main

        code = main()
        gc.freeze()  # else Python would look for garbage once more before it exits
        return code
    except KeyboardInterrupt:  # Ctrl-C before the command line handles signals, or after
        if sys.stderr is not None:
            from contextlib import suppress

            with suppress(OSError, ValueError):
                os.write(sys.stderr.fileno(), b"\ninterrupted\n")  # as the command line does
        return 130
    except Exception as error:  # noqa: BLE001 - a bug in pallasc; `echo` escapes its text
        import traceback

        from pallasc.cli.output.text import echo

        echo("".join(traceback.format_exception(error)), err=True, nl=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
