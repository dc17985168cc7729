"""Print where the C library is: `python -m pallasc.runtime.native [--include | --library]`.

export PKG_CONFIG_PATH=$(python -m pallasc.runtime.native)
c++ program.cpp $(pkg-config --cflags --libs pallasc)
"""

from __future__ import annotations

import argparse
import sys

from pallasc.errors import ToolError
from pallasc.runtime.native.library import FOLDER, library_file, open_library


def main() -> int:
    """Print a path, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pallasc.runtime.native",
        description="Print the folder of the C library's pkg-config file.",
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--include", action="store_true", help="print the header's folder instead")
    choice.add_argument("--library", action="store_true", help="print the library's file instead")
    chosen = parser.parse_args()
    try:
        file = library_file()
        open_library(file)  # never let a program link with an unusable library
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    path = file if chosen.library else FOLDER / ("include" if chosen.include else "pkgconfig")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
