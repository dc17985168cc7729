"""Commands as pages show them in console blocks, with the output below each."""

import re
from collections.abc import Iterator

# A machine that is busy also says what is running; no page shows that.
RUNNING = re.compile(
    r"^(?:\[ *\d+/\d+\] (?:(?:compiling|checking) \d+: .*|getting ready|waiting)"
    r"|reading .+ \d+ s|(?:sent|brought) [\d,]+ of [\d,]+ variants?)\n",
    re.MULTILINE,
)


def without_heartbeats(output: str) -> str:
    """Return output without the lines that say from time to time what is going on."""
    return RUNNING.sub("", output)


# Runs the command line, which waits for a remote store for as long as that takes: a busy machine
# may need longer than a build waits, which then takes nothing from the remote.
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
    """Return whether output is what is shown; `…` stands for anything, on a line for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…\n" else ".*".join(map(re.escape, line.split("…")))
        for line in wanted.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, without_heartbeats(output)) is not None
