"""Hide from the user's code in workers what differs between users, machines and builds.

Kernels see an empty home, a user called `pallasc`, no search paths of modules and libraries, and no
arguments. Variables that the process and its child processes need are hidden from `os.environ`
only. Kernels run in the folder of their spec, without a terminal or standard input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from pallasc.errors import SpecError

_chdir = os.chdir  # user code may replace it

_USER = "pallasc"
_folder = _home = _path = ""
_declared: set[str] = set()


def isolate_process(folder: str, program: str, *, hidden: Iterable[str], path: str) -> None:
    """Isolate this process from now on.

    Args:
        folder: an empty folder, for the home and for temporary files.
        program: name of the process in `sys.argv`.
        hidden: variables to remove from `os.environ` but not from the process.
        path: value of `PATH` in `os.environ`.
    """
    global _folder, _home, _path
    _path = os.environ.get("PATH", "")
    _folder, _home = os.path.realpath(folder), os.path.join(os.path.realpath(folder), "home")
    os.mkdir(_home, 0o700)
    os.environ["HOME"] = _home
    for name in {*hidden} & {*os.environ}:
        _keep_outside(name, None)
    _keep_outside("PATH", path)
    # `tempfile` is configured directly; child processes read the variable.
    os.environ.pop("TMPDIR", None)
    os.putenv("TMPDIR", folder)
    sys.argv, sys.orig_argv = [program], [sys.executable, program]
    _hide_user()


def restore_path(shown: str) -> None:
    """Restore `PATH`: one value for the process, the other for `os.environ`."""
    os.environ["PATH"] = shown
    os.putenv("PATH", _path)


def _keep_outside(name: str, shown: str | None) -> None:
    """Set a variable in `os.environ`, or remove it, without changing it in the process.

    Assigning to `os.environ` also calls `putenv`, hence the order.
    """
    value = os.environ.pop(name, None)
    if shown is not None:
        os.environ[name] = shown
    if value is not None:
        os.putenv(name, value)


def _hide_user() -> None:
    """Make the account database agree with the variables."""
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
    """Set in `os.environ` the variables that a spec declares; None unsets."""
    _declared.update(variables)
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def is_declared(name: str) -> bool:
    """Tell whether the spec declares a variable."""
    return name in _declared


def enter(folder: str) -> None:
    """Change to the folder of a spec, or to the folder of the archive that a function is in.

    Raises:
        SpecError: it cannot be entered.
    """
    try:
        _chdir(os.path.dirname(folder) if os.path.isfile(folder) else folder)
    except OSError as error:
        raise SpecError(f"{folder} cannot be entered: {error.strerror}.") from error


def is_own(path: str) -> bool:
    """Tell whether a path is in the process's own folder, which was empty at the start."""
    return bool(_folder) and (path == _folder or path.startswith(os.path.join(_folder, "")))


def in_home(path: str) -> str:
    """Return `~/…` for a path in the process's home, "" for other paths."""
    inside = os.path.join(_home, "")
    return os.path.join("~", path.removeprefix(inside)) if path.startswith(inside) else ""
