"""Hide from the code that a worker runs what tells users, machines and builds apart.

Beside the variables that `environment` lets in, kernels would see who runs the build, from where,
with which arguments and temporary files. Here they see the same everywhere: a home of their own,
which is empty, a user called `pallasc`, no places of modules and libraries, no arguments. What
the process and the programs that it starts need stays in their environment; only `os.environ` is
without it. They work in the folder of their spec, without a terminal and with no standard input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from pallasc.errors import SpecError

_chdir = os.chdir  # the user's code may replace it

_USER = "pallasc"
_folder = _home = _path = ""
_declared: set[str] = set()


def isolate_process(folder: str, program: str, *, hidden: Iterable[str], path: str) -> None:
    """Hide it in this process from now on.

    Args:
        folder: an empty one, for a home and for temporary files.
        program: what the process calls itself.
        hidden: variables that the process keeps and that `os.environ` loses.
        path: what `os.environ` has for `PATH`.
    """
    global _folder, _home, _path
    _path = os.environ.get("PATH", "")
    _folder, _home = os.path.realpath(folder), os.path.join(os.path.realpath(folder), "home")
    os.mkdir(_home, 0o700)
    os.environ["HOME"] = _home
    for name in {*hidden} & {*os.environ}:
        _keep_outside(name, None)
    _keep_outside("PATH", path)
    # `tempfile` is told; nobody else needs to see where that is.
    os.environ.pop("TMPDIR", None)
    os.putenv("TMPDIR", folder)
    sys.argv, sys.orig_argv = [program], [sys.executable, program]
    _hide_user()


def restore_path(shown: str) -> None:
    """Have the process search for programs where it did, and `os.environ` say so as before."""
    os.environ["PATH"] = shown
    os.putenv("PATH", _path)


def _keep_outside(name: str, shown: str | None) -> None:
    """Give `os.environ` another value for a variable, or none, than the process has."""
    value = os.environ.pop(name, None)
    if shown is not None:
        os.environ[name] = shown
    if value is not None:
        os.putenv(name, value)


def _hide_user() -> None:
    """Have the user's account say what the variables say."""
    import pwd

    plain_number, plain_name, user = pwd.getpwuid, pwd.getpwnam, os.getuid()

    def account() -> pwd.struct_passwd:
        return pwd.struct_passwd((_USER, "x", user, os.getgid(), "", _home, "/bin/sh"))

    def getpwuid(uid: int, /) -> pwd.struct_passwd:
        return account() if uid == user else plain_number(uid)

    def getpwnam(name: str, /) -> pwd.struct_passwd:
        return account() if name == _USER else plain_name(name)

    pwd.getpwuid, pwd.getpwnam = getpwuid, getpwnam
    os.getlogin = lambda: _USER


def expose_variables(variables: Mapping[str, str | None]) -> None:
    """Give `os.environ` the variables that a spec declares; None for what is not set."""
    _declared.update(variables)
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def is_declared(name: str) -> bool:
    """Tell whether the spec declares a variable, so that it is seen where it is set."""
    return name in _declared


def enter(folder: str) -> None:
    """Make the folder of a spec the current one.

    Raises:
        SpecError: that is not possible.
    """
    try:
        _chdir(folder)
    except OSError as error:
        raise SpecError(f"{folder} cannot be entered: {error.strerror}.") from error


def is_own(path: str) -> bool:
    """Tell whether a path lies in the process's own folder, which was empty when it began."""
    return bool(_folder) and (path == _folder or path.startswith(os.path.join(_folder, "")))


def in_home(path: str) -> str:
    """Return what a path below the process's home would be called at the user's, "" elsewhere."""
    inside = os.path.join(_home, "")
    return os.path.join("~", path.removeprefix(inside)) if path.startswith(inside) else ""
