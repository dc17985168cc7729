"""`pallasc doctor`: check that everything needed for compiling is installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import json_option, ptxas_setting
from pallasc.cli.output.text import echo, json_text, table
from pallasc.errors import PallascError, ToolError

if TYPE_CHECKING:
    from pallasc.compiler.toolchain.toolchain import Item


@click.command(
    "doctor", cls=Command, short_help="Check that everything needed for compiling is installed."
)
@json_option("the items")
def command(as_json: bool) -> None:
    """Check every required package and tool, and show how to install missing ones.

    Compiling needs no GPU, no driver, and no C compiler. The exit code is 4 if a required item is
    missing or has the wrong version. If only the runtime is installed, the output shows which
    kernels can run, and the exit code is 0.

    The "native launch" line shows the status of pallasc's C library, which launches kernels from C,
    C++, and JAX, and of the extension module for calls from Python. Both need a C compiler when
    pallasc is installed.

    The "remote store" line appears if PALLASC_REMOTE or pyproject.toml sets a remote store. Doctor
    sends the store one request; if builds write to the store, doctor also writes a small object.

    Examples:
      pallasc doctor
      PALLASC_PTXAS=/usr/local/cuda/bin/ptxas pallasc doctor
      pallasc doctor --json | jq -r ".items[] | select(.problem).fix"
    """
    from pallasc.compiler.toolchain.toolchain import inventory, only_runs, problem_of

    ptxas = ptxas_setting()
    items = inventory(ptxas)
    problem = problem_of(items)
    runs_only = problem is not None and only_runs(items)
    items += [_native_launch(), *_salt(), *_remote(ptxas)]
    if as_json:
        data = {"ok": problem is None, "runs": _runs()}
        echo(json_text({**data, "items": [asdict(item) for item in items]}))
    elif runs_only:
        echo(f"{items_text(items, fixes=False)}\n\n{running_text(_runs())}")
    else:
        echo(items_text(items))
    if problem is not None and not runs_only:
        raise ToolError(problem)


def _native_launch() -> Item:
    """Return the status of the C library that launches kernels."""
    from pallasc.compiler.toolchain.toolchain import Item
    from pallasc.runtime.native.library import library_file, open_library, why_not

    name, purpose = "native launch", "JAX programs cannot launch kernels"
    try:
        file = library_file()
        version, problem = open_library(file).version, why_not()
        if problem:
            purpose = "calls go through Python"
        return Item(name, version, purpose, needed=False, path=str(file), problem=problem)
    except ToolError as error:
        if why_not():
            purpose = "kernels are launched by Python, and not in JAX programs"
        return Item(name, "", purpose, needed=False, problem=error.message.rstrip("."))


def _salt() -> list[Item]:
    """Return the cache salt and the place where it is set; empty without a salt."""
    from pallasc.compiler.toolchain.toolchain import Item
    from pallasc.specs.settings import SALT, build_settings, cache_salt

    salt = cache_salt(os.environ)
    if not salt:
        return []
    place = SALT if os.environ.get(SALT) else str(build_settings().where["cache-salt"])
    return [Item("cache salt", salt, "is part of every key", needed=False, path=place)]


def _remote(ptxas: Path | None) -> list[Item]:
    """Return the status of the builds' remote store; empty without a remote store."""
    from pallasc.compiler.builds.options import remote_settings
    from pallasc.compiler.toolchain.toolchain import Item

    name, purpose = "remote store", "builds continue without it"
    try:
        settings = remote_settings(os.environ)
    except PallascError as error:
        where = f"{error.location}: " if error.location else ""
        problem = f"{where}{error.message.rstrip('.')}"
        return [Item(name, "", "builds fail until this is fixed", needed=False, problem=problem)]
    if settings is None:
        return []
    from pallasc.cache.remote.remote import probe

    unreadable, unwritable = probe(settings, _namespace(ptxas))
    problem = unreadable or unwritable
    access = "read, write" if settings.write and not problem else "read"
    version, path = "" if unreadable else access, settings.address.text
    return [Item(name, version, purpose, needed=False, path=path, problem=problem.rstrip("."))]


def _namespace(ptxas: Path | None) -> str:
    """Return the namespace of the installed toolchain; a dummy if the toolchain is incomplete."""
    from pallasc.compiler.builds.remote_tier import namespace
    from pallasc.compiler.toolchain.setup import prepare

    try:
        with prepare(ptxas) as setup:
            return namespace(setup)
    except PallascError:
        return "0" * 64


def _runs() -> list[str]:
    """Return the architectures of this machine's GPUs; empty without a driver."""
    from pallasc.runtime.device.devices import capabilities
    from pallasc.specs.gpus import DEFAULT_MODELS

    try:
        numbers = {f"sm_{major}{minor}" for major, minor in capabilities()}
    # A missing driver is normal: machines that only compile need none.
    except PallascError:
        return []
    return [arch for arch in DEFAULT_MODELS if arch.rstrip("af") in numbers]


def running_text(archs: Sequence[str]) -> str:
    """Return which kernels can run in an environment without a compiler."""
    from pallasc.compiler.toolchain.toolchain import INSTALL

    gpus = "No GPU found: launching needs a GPU and NVIDIA's driver."
    if archs:
        gpus = f"The GPUs here run kernels for {', '.join(archs)}."
    first = "No compiler is installed: kernels can be run, but not compiled."
    return "\n".join([first, gpus, f"To compile as well: {INSTALL}"])


def items_text(items: Sequence[Item], *, fixes: bool = True) -> str:
    """Return the items as a table, followed by the commands that install missing ones."""
    rows = [[item.name, item.version or "-", _state(item), item.path] for item in items]
    text = table(["NAME", "VERSION", "STATE", "PATH"], rows)
    commands = list(dict.fromkeys(item.fix for item in items if item.problem and item.fix))
    if not (commands and fixes):
        return text
    needed = any(item.problem and item.needed for item in items)
    title = "To fix this:" if needed else "Optional:"
    return "\n".join([text, "", title, *(f"  {command}" for command in commands)])


def _state(item: Item) -> str:
    if not item.problem:
        return "ok"
    return item.problem if item.needed else f"{item.problem}; {item.purpose}"
