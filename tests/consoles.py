"""Console blocks of pages: commands, each with the output that is shown below it."""

import re
from collections.abc import Iterator

# Lines about running work, which commands print only on a busy machine, and no page shows.
RUNNING = re.compile(
    r"^(?:\[ *\d+/\d+\] (?:(?:compiling|checking) \d+: .*|getting ready|waiting)"
    r"|reading .+ \d+ s|(?:sent|brought) [\d,]+ of [\d,]+ variants?)\n",
    re.MULTILINE,
)


def without_heartbeats(output: str) -> str:
    """Return output without the lines that report running work from time to time."""
    return RUNNING.sub("", output)


# Runs the command line without time limits for remote stores: on a busy machine, an answer may take
# longer than a build waits, and the build would then do without the remote.
PATIENT = """
import sys
from pallasc.cache.remote import session
session.PATIENCE_S = 1e9
session.REQUEST_S = 3600.0
from pallasc.cli.main import main
sys.exit(main())
"""


def shown(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block with the output that is shown below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def fits(output: str, wanted: str) -> bool:
    """Return True if output is as shown; `…` stands for any text, alone on a line for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…\n" else ".*".join(map(re.escape, line.split("…")))
        for line in wanted.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, without_heartbeats(output)) is not None
