"""Check that pallasc can work on this machine, before anything is installed.

If it cannot, print the reason in one sentence. This file also runs on old Pythons, from 2.7 on, so
that they can report that they are too old.
"""

import platform
import sys

OLDEST_PYTHON = (3, 11)
MACHINES = ("x86_64", "aarch64")


def refusal(python, implementation, system, machine, libc, missing_module):
    """Return the sentence that says why pallasc cannot work, or None if it can.

    Args:
        python: version as a tuple of integers.
        implementation: "CPython" or another.
        system: name of the operating system, as returned by `platform.system()`.
        machine: name of the processor architecture, as returned by `platform.machine()`.
        libc: name of the C library; "glibc" on most Linux systems.
        missing_module: name of a missing standard module that a virtual environment needs, or
            None.
    """
    found = ".".join(str(part) for part in python)
    if python[:2] < OLDEST_PYTHON:
        why = "needs Python 3.11 or newer, and this is {}: pass PYTHON=python3.12".format(found)
    elif implementation != "CPython":
        why = "needs CPython, as JAX does, and this is {} {}".format(implementation, found)
    elif system != "Linux":
        why = "needs Linux, as NVIDIA's assembler wheels do, and this is {}".format(system)
    elif machine not in MACHINES:
        why = "needs x86_64 or aarch64, as JAX's CUDA wheels do, and this is {}".format(machine)
    elif libc != "glibc":
        why = "needs glibc, as JAX's CUDA wheels do, and this Python is linked to another C library"
    elif missing_module:
        why = "needs the module {}, which this Python lacks: install python3-venv".format(
            missing_module
        )
    else:
        return None
    return "pallasc {}.".format(why)


def first_missing(modules):
    """Return the first name in `modules` that cannot be imported, or None."""
    for name in modules:
        try:
            __import__(name)
        except ImportError:
            return name
    return None


def main():
    """Print the reason if pallasc cannot work, and return the exit status."""
    sentence = refusal(
        python=tuple(sys.version_info[:3]),
        implementation=platform.python_implementation(),
        system=platform.system(),
        machine=platform.machine(),
        libc=platform.libc_ver()[0],
        missing_module=first_missing(("venv", "ensurepip")),
    )
    if sentence:
        sys.stderr.write(sentence + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
