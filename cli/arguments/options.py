"""Arguments and options shared by several commands."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click
from click.core import ParameterSource

from pallasc.cli.output.text import is_ci
from pallasc.errors import Location, SpecError

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.cli.output.reports import Outputs


F = TypeVar("F", bound=Callable[..., Any])

_LEAST_MEMORY_BYTES = 64 << 20
"""Minimum memory limit; below it, a process cannot import packages."""


EXECUTION_S = 600
"""Default time limit for execution on the CPU: a hanging kernel must not hang a CI job."""

_NO_LIMIT = {"0", "none", "unlimited"}


class Selection(NamedTuple):
    """Selection of the variants that a command works on; see `selection_options`."""

    targets: tuple[str, ...] = ()
    expression: str | None = None
    all_points: bool = False


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds several options; the help lists them in this order."""

    def add(function: F) -> F:
        for option in reversed(options):  # click lists the last applied option first
            function = option(function)
        return function

    return add


def packed(parameter: str, make: Callable[..., Any], names: Iterable[str] = ()) -> Callable[[F], F]:
    """Return a decorator that combines options into one parameter, computed by `make`."""

    def add(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **values: Any) -> Any:
            given = {name: values.pop(name) for name in names if name in values}
            return function(*args, **{parameter: make(**given)}, **values)

        return cast(F, call)

    return add


def read_by(read: Callable[[str], Any]) -> Callable[..., Any]:
    """Return an option callback that parses the text with `read`; None if the option is missing."""

    def callback(ctx: click.Context, _: click.Parameter, text: str | None) -> Any:
        # Parse nothing during shell completion.
        return None if text is None or ctx.resilient_parsing else read(text)

    return callback


def specs_argument(*, required: bool = True) -> Callable[[F], F]:
    """Return the SPECS argument: files and folders of specs."""
    return click.argument(
        "specs",
        nargs=-1,
        required=required,
        type=click.Path(),
        metavar="SPECS..." if required else "[SPECS]...",
    )


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)

files_argument = click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE...")


def only_bundles(kind: str, command: str) -> Callable[..., Any]:
    """Return an argument callback that raises SpecError for a file that is not a bundle.

    Args:
        kind: kind of bundle, for the message.
        command: command that writes one, for the hint.
    """

    def callback(ctx: click.Context, _: click.Parameter, given: Any) -> Any:
        from pallasc.specs.bundle.format import is_bundle

        for file in given if isinstance(given, tuple) else (given,):
            if not ctx.resilient_parsing and file.is_file() and not is_bundle(file):
                raise SpecError(f"{file} is not a {kind}.", hint=f"Make a {kind}: {command}")
        return given

    return callback


_BUNDLES = only_bundles("bundle", "pallasc bundle create SPECS -o kernels.pallasc")
bundle_argument = click.argument("file", type=PATH, metavar="FILE", callback=_BUNDLES)
bundles_argument = click.argument(
    "files", nargs=-1, required=True, type=PATH, metavar="FILE...", callback=_BUNDLES
)


def json_option(what: str) -> Callable[[F], F]:
    """Return the `--json` option; `what` completes "Print ... as JSON"."""
    return flag("--json", f"Print {what} as JSON; see docs/json.md.", parameter="as_json")


def option(
    name: str, metavar: str | None, text: str, *, parameter: str | None = None, **settings: Any
) -> Callable[[F], F]:
    """Return an option with a value; its help shows the default, if any.

    Args:
        name: the option, such as "--flops" or "-j --jobs".
        metavar: name of the value in the help; None for its type.
        text: the help.
        parameter: the command's parameter, if its name differs.
        settings: as for `click.option`.
    """
    names = [*name.split(), *([parameter] if parameter else [])]
    shows = settings.get("default") is not None and settings["default"] != ""
    return click.option(*names, metavar=metavar, help=text, show_default=shows, **settings)


def flag(name: str, text: str, *, parameter: str | None = None) -> Callable[[F], F]:
    """Return an option without a value; for arguments, see `option`."""
    names = [*name.split(), *([parameter] if parameter else [])]
    return click.option(*names, is_flag=True, help=text)


def choice_option(
    name: str, choices: Sequence[str], text: str, **settings: Any
) -> Callable[[F], F]:
    """Return an option whose value is one of `choices`; for other arguments, see `option`."""
    return option(name, None, text, type=click.Choice(choices), **settings)


def file_option(name: str, text: str, **settings: Any) -> Callable[[F], F]:
    """Return an option for the path of a file, which need not exist; see `option`."""
    return option(name, "FILE", text, type=FILE, **settings)


def output_option(
    metavar: str, text: str, *, required: bool = True, **kind: bool
) -> Callable[[F], F]:
    """Return the `--output` option; `kind` restricts it to a file or a folder."""
    path = click.Path(path_type=Path, **kind)
    return option("-o --output", metavar, text, type=path, required=required)


def count_option(name: str, text: str, *, least: int = 1, **settings: Any) -> Callable[[F], F]:
    """Return an option for an integer of at least `least`; see `option`."""
    return option(name, "N", text, type=click.IntRange(least), **settings)


def _complete_target(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from pallasc.specs.gpus import DEFAULT_MODELS, MODELS

    return [name for name in (*DEFAULT_MODELS, *MODELS) if name.startswith(incomplete)]


def expression_option(text: str) -> Callable[[F], F]:
    """Return the `-k` option with a help text."""
    return option("-k", "EXPR", text, parameter="expression")


def target_option(text: str) -> Callable[[F], F]:
    """Return the `--target` option with a help text."""
    return option(
        "--target",
        "NAME",
        f"{text}; repeatable.",
        parameter="targets",
        multiple=True,
        shell_complete=_complete_target,
    )


_variants = together(
    target_option("Replace the specs' targets with this one"),
    expression_option('Select variants that match EXPR, such as "matmul and m=64".'),
)

selecting = packed("selection", Selection, Selection._fields)
"""Combines a command's selection options into one `selection` parameter."""

variant_options = together(_variants, selecting)
"""Selection options for specs, without `--all-points`."""

selection_options = together(
    _variants,
    flag("--all-points", "Select all values of tuned parameters, not only those in tuning tables."),
    selecting,
)

bundle_selection_options = together(
    target_option("Select variants for this model or architecture"),
    expression_option("Select variants that match EXPR, as in pallasc build."),
    selecting,
)

store_option = option(
    "--store",
    "PATH",
    "Folder of the store. Default: $PALLASC_CACHE_DIR, or ~/.cache/pallasc.",
    parameter="store_root",
    type=PATH,
    envvar="PALLASC_CACHE_DIR",
)


def lock_option(what: str) -> Callable[[F], F]:
    """Return the `--lock` option for a lock file; `what` starts its help."""
    return file_option("--lock", f"{what}. Default: ./pallasc.lock.")


frozen_option = flag("--frozen", "Compile nothing; fail if an artifact is missing.")

frozen_options = together(
    frozen_option,
    flag("--locked", "Fail if anything differs from the lock file."),
    lock_option("Path of the lock file"),
)

quiet_option = flag("-q --quiet", "Print only problems.")
explain_option = flag("--explain", "Explain why variants are not in the store.")
fail_fast_option = click.option(
    "--fail-fast", "keep_going", flag_value=False, default=True, help="Stop at the first failure."
)


def _outputs(**given: Any) -> Outputs:
    from pallasc.cli.output.reports import Outputs

    return Outputs(**given)


def report_options(problems: str, *more: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return the report options of a build or check, which the command receives as `outputs`.

    Args:
        problems: completes "Print ... as annotations".
        more: options for other reports.
    """
    annotations = choice_option(
        "--annotations", ["github"], f"Print {problems} as annotations for GitHub."
    )
    junit = file_option("--junit", "Write the report as JUnit XML; - for stdout.")
    names = ("as_json", "junit", "annotations", "sarif")
    return together(
        json_option("the report"), junit, *more, annotations, packed("outputs", _outputs, names)
    )


def ptxas_setting() -> Path | None:
    """Return `PALLASC_PTXAS`: assembler to use instead of the one in NVIDIA's wheel."""
    path = os.environ.get("PALLASC_PTXAS")
    return Path(path) if path else None


def _store_is_required() -> bool:
    """Return True if an unwritable store is an error.

    With `PALLASC_REQUIRE_STORE=1`, it is an error; with 0, the command continues without the store.
    The default is 1 in CI, else 0.

    Raises:
        SpecError: `PALLASC_REQUIRE_STORE` is neither 1 nor 0.
    """
    text = os.environ.get("PALLASC_REQUIRE_STORE", "")
    if text not in ("", "0", "1"):
        raise SpecError(f"PALLASC_REQUIRE_STORE must be 1 or 0, got {text!r}.")
    # In CI, a build without a writable store would compile everything again on every run.
    return text == "1" if text else is_ci(os.environ)


def _patterns(
    ctx: click.Context, _: click.Parameter, texts: tuple[str, ...]
) -> tuple[re.Pattern[str], ...]:
    """Compile regular expressions.

    Raises:
        click.BadParameter: a text is not a regular expression.
    """
    patterns = []
    for text in texts:
        try:
            patterns.append(re.compile(text, re.IGNORECASE))
        except re.error as error:
            raise click.BadParameter(
                f'{text!r} is not a regular expression: {error}. Use "." for any warning.', ctx
            ) from error
    return tuple(patterns)


def _executor(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Return the scheduler address from the option or the project, None to compile locally.

    Raises:
        SpecError: the text is not a scheduler's address.
    """
    if ctx.resilient_parsing:
        return None
    source = ctx.get_parameter_source(str(parameter.name))
    label = "PALLASC_EXECUTOR" if source is ParameterSource.ENVIRONMENT else "--executor"
    place: Location | None = None
    if text is None:
        from pallasc.specs.settings import build_settings

        settings = build_settings()
        text, label, place = settings.executor, "executor", settings.where.get("executor")
    if not text:
        return None
    from pallasc.compiler.workers.cluster import scheduler_url

    try:
        scheduler_url(text)
    except SpecError as error:
        raise SpecError(f"{label}: {error.message}", location=place, hint=error.hint) from None
    return text.strip()


executor_option = option(
    "--executor",
    "ADDRESS",
    'Compile on Dask: dask://HOST:8786, dask+tls://HOST:8786, or "dask:" (a local cluster).',
    callback=_executor,
    envvar="PALLASC_EXECUTOR",
)

fail_on_warning_option = option(
    "--fail-on-warning",
    "PATTERN",
    "Fail on warnings that match this regex.",
    multiple=True,
    callback=_patterns,
)


def size_option(
    name: str, parameter: str, text: str, *, least_bytes: int = 1, **settings: Any
) -> Callable[[F], F]:
    """Return an option for a size such as 4GiB; its value is None for no limit."""

    def parse(size: str) -> int | None:
        from pallasc.cache.evict import parse_size

        return parse_size(size, what=name, least_bytes=least_bytes)

    return option(name, "SIZE", text, parameter=parameter, callback=read_by(parse), **settings)


def _memory_bytes(text: str) -> int:
    """Return a size in bytes, 0 for no limit; None would mean the default share of memory.

    Raises:
        SpecError: the text is not a size.
    """
    from pallasc.cache.evict import parse_size

    return parse_size(text, what="--memory", least_bytes=_LEAST_MEMORY_BYTES) or 0


def _seconds(text: str) -> float | None:
    """Return a time limit in seconds, None for no limit.

    Raises:
        SpecError: the text is not a positive number.
    """
    if text.strip().lower() in _NO_LIMIT:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0  # rejected below, like other invalid limits
    if not 0 < seconds < float("inf"):  # also rejects nan
        raise SpecError(
            f"--timeout must be a positive number of seconds, got {text!r}.",
            hint="0 or none: no limit.",
        )
    return seconds


def _limit_options(
    what: str, *, seconds: int | None = None, memory: str = "its share of the machine's memory"
) -> Callable[[F], F]:
    """Return the `--timeout` and `--memory` options.

    Args:
        what: the work that is stopped at a limit, for the help.
        seconds: default time limit, None for no limit.
        memory: default memory limit, for the help.
    """
    end = ". Default: no limit" if seconds is None else "; 0 or none for no limit"
    return together(
        option(
            "--timeout",
            "SECONDS",
            f"Stop {what} after this many seconds{end}.",
            parameter="timeout_s",
            callback=read_by(_seconds),
            default=None if seconds is None else str(seconds),
        ),
        option(
            "--memory",
            "SIZE",
            f"Stop {what} above this much memory, e.g. 4GiB. Default: {memory}.",
            parameter="memory_bytes",
            callback=read_by(_memory_bytes),
        ),
    )


supervision_options = _limit_options("a compilation")
"""Limits for compiling a variant; there is no default time limit."""

launching_options = _limit_options("a compilation or an emulation", seconds=EXECUTION_S)
"""Limits for compiling and emulating a variant; launches on the GPU are not limited."""

checking_options = _limit_options("a level or a compilation", seconds=EXECUTION_S)
"""Limits for compiling and checking a variant."""


def _remote_of_build(remote: str | None, remote_write: bool | None) -> RemoteSettings | None:
    from pallasc.compiler.builds.options import remote_settings

    settings = None
    if remote != "none":
        settings = remote_settings(os.environ, url=remote, write=remote_write)
    if settings is None and remote_write:
        raise click.UsageError(
            "--remote-write needs a remote store: set it with --remote or PALLASC_REMOTE."
        )
    return settings


_remote_options = together(
    option(
        "--remote",
        "URL",
        'Read this remote store; "none" disables it. Default: $PALLASC_REMOTE, or pyproject.toml.',
    ),
    click.option(
        "--remote-write/--no-remote-write",
        default=None,
        help="Send compiled variants to the remote store, or only read from it.",
    ),
)
