"""Arguments and options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_LEAST_MEMORY_BYTES = 64 << 20
"""No process that imports anything gets by with less."""


@dataclass(slots=True)
class Talk:
    """What one run of the command line was asked to say about its errors."""

    traceback: bool = False


def _want_traceback(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    talk = ctx.find_object(Talk)
    if wanted and talk is not None:
        talk.traceback = True


def traceback_option(*, hidden: bool = True) -> Callable[[F], F]:
    """Return the option `--traceback`, which works before and after the command's name."""
    return click.option(
        "--traceback",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=hidden,
        callback=_want_traceback,
        help="Show Python's traceback of an error that ends the command, for a bug report; kernels "
        "that fail to compile have none.",
    )


def specs_argument(*, required: bool = True) -> Callable[[F], F]:
    """Return the argument SPECS: files and folders of specs."""
    return click.argument(
        "specs",
        nargs=-1,
        required=required,
        type=click.Path(),
        metavar="SPECS..." if required else "[SPECS]...",
    )


def json_option(what: str) -> Callable[[F], F]:
    """Return the option `--json`, described as printing `what`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def selection_options(function: F) -> F:
    """Add the options that choose variants: `--target` and `-k`."""
    for option in (
        click.option(
            "-k",
            "expression",
            metavar="EXPR",
            help="Take only the variants that match EXPR: a part of a name, param=value, "
            "target=sm_90a, with and, or, not and parentheses.",
        ),
        click.option(
            "--target",
            "targets",
            multiple=True,
            metavar="NAME",
            help="A model or architecture in place of the spec's own targets; repeatable.",
        ),
    ):
        function = option(function)
    return function


def store_option(function: F) -> F:
    """Add the option `--store`."""
    return click.option(
        "--store",
        "store_root",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="PALLASC_CACHE_DIR",
        show_envvar=True,
        help="The folder of the store.",
    )(function)


def require_store_option(function: F) -> F:
    """Add the option `--require-store`, which is on by default where CI is set."""
    return click.option(
        "--require-store/--no-require-store",
        default=None,
        callback=_required,
        help="Fail with exit code 4 where the store cannot be written, or go on without it; "
        "without either, fail where $CI is set and not false.",
    )(function)


def fail_on_warning_option(function: F) -> F:
    """Add the option `--fail-on-warning`."""
    return click.option(
        "--fail-on-warning",
        multiple=True,
        callback=_patterns,
        metavar="PATTERN",
        help="Fail a variant, with exit code 1, that compiles with a warning in which this regular "
        "expression is found, in any case of letters; hits too. Repeatable.",
    )(function)


def _patterns(
    ctx: click.Context, _: click.Parameter, texts: tuple[str, ...]
) -> tuple[re.Pattern[str], ...]:
    """Return regular expressions.

    Raises:
        click.BadParameter: one is none.
    """
    found = []
    for text in texts:
        try:
            found.append(re.compile(text, re.IGNORECASE))
        except re.error as error:
            raise click.BadParameter(
                f'{text!r} is not a regular expression: {error}. For any warning, write ".".', ctx
            ) from error
    return tuple(found)


def _required(ctx: click.Context, _: click.Parameter, wanted: bool | None) -> bool:
    """Return whether the store must be written, which CI services want by themselves."""
    if wanted is not None:
        return wanted
    from pallasc.cli.terminal.workspace import is_ci

    return is_ci(os.environ)


def signed_store_option(function: F) -> F:
    """Add the option `--require-signed-store`."""
    return click.option(
        "--require-signed-store",
        "require_signed",
        is_flag=True,
        help="Take only what a trusted key signed from the store, and compile the rest; as with "
        "PALLASC_REQUIRE_SIGNED_STORE=1.",
    )(function)


def supervision_options(function: F) -> F:
    """Add the options that say what compiling a variant may take: `--timeout` and `--memory`."""
    for option in (
        click.option(
            "--memory",
            "memory_bytes",
            callback=_memory_bytes,
            metavar="SIZE",
            help="Stop a compiling process that holds more, such as 4GiB, at least 64MiB; by "
            "default its share of the machine.",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            callback=_seconds,
            metavar="SECONDS",
            help="Stop a variant that takes longer.",
        ),
    ):
        function = option(function)
    return function


def reading_options(function: F) -> F:
    """Add the same two where nothing is compiled: they hold for executing Python specs."""
    for option in (
        click.option(
            "--memory",
            "memory_bytes",
            callback=_memory_bytes,
            metavar="SIZE",
            help="Stop a Python spec that holds more, such as 4GiB, at least 64MiB; by default "
            "what there is.",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            callback=_seconds,
            metavar="SECONDS",
            help="Stop a Python spec that takes longer to execute.",
        ),
    ):
        function = option(function)
    return function


def _memory_bytes(ctx: click.Context, _: click.Parameter, text: str | None) -> int | None:
    """Return a size in bytes, 0 for no limit, None where none is given.

    Raises:
        SpecError: it is none.
    """
    if text is None or ctx.resilient_parsing:
        return None
    from pallasc.cache.upkeep.limits import parse_size

    return parse_size(text, what="--memory", least_bytes=_LEAST_MEMORY_BYTES) or 0


def _seconds(ctx: click.Context, _: click.Parameter, text: str | None) -> float | None:
    """Return a time limit in seconds, None where none is given.

    Raises:
        SpecError: it is not a positive number.
    """
    if text is None or ctx.resilient_parsing:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        from pallasc.errors import SpecError

        raise SpecError(f"--timeout must be a positive number of seconds, got {text!r}.")
    return seconds


def compile_options(function: F) -> F:
    """Add the options of everything that may compile: `--jobs` and `--ptxas`."""
    for option in (
        click.option(
            "--ptxas",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="The assembler to use instead of the one in NVIDIA's wheel.",
        ),
        click.option(
            "-j",
            "--jobs",
            type=click.IntRange(min=1),
            metavar="N",
            help="Compile in at most N processes at once; by default as many as cores and memory "
            "allow.",
        ),
    ):
        function = option(function)
    return function


def size_value(ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Return a size in bytes that an option gives, None for no limit.

    Raises:
        SpecError: it is none.
    """
    if text is None or ctx.resilient_parsing:
        return None
    from pallasc.cache.upkeep.limits import parse_size

    return parse_size(text, what=option.opts[0])
