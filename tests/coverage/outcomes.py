"""The outcome of a case: "ok", "gap: …", "fault: …", "found: …" or "wrong: …".

A gap is a message of JAX, Mosaic, or `ptxas`; a fault is something else than the kernel asks for;
"found" is a finding of the emulation. All are declared. Anything that is not declared is "wrong".
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from covering import Case, Found, Look


def outcome(case: Case, arch: str, version: str, said: str, found: Found | None) -> str:
    """Return the outcome of compiling a case for an architecture.

    Args:
        case: its declaration.
        arch: the architecture.
        version: JAX's version.
        said: the compiler's message if it did not compile.
        found: the result.
    """
    words = case.gap(version, arch)
    if found is None:
        return told("compiler", words, said)
    if words is not None:
        return f"wrong: it compiles, and was to say: {words}"
    looks = [look for look in case.looks if look.jax in ("", version)]
    verdicts = [text for look in looks if (text := verdict(look, found))]
    return "; ".join([text for text in verdicts if text.startswith("wrong")] or verdicts) or "ok"


def verdict(look: Look, found: Found) -> str:
    """Return the outcome of a look, "" if it is as it should be."""
    try:
        wrong = look.wrong(found)
    except Exception as error:  # the thing to look at is absent
        return f"wrong: {look.says}: {type(error).__name__}: {error}"
    if look.fault:
        return f"fault: {look.fault}" if wrong else f"wrong: {look.says}, and was to be a fault"
    return f"wrong: {wrong}" if wrong else ""


def emulated(case: Case, said: str) -> str:
    """Return the outcome of emulating a case."""
    kind, _, why = said.partition(": ")
    if kind == "undefined":
        return f"gap: {why}"
    found = told("emulator", case.emulated, said)
    if kind != "UnsupportedError" and found.startswith("gap: "):
        return f"found: {found.removeprefix('gap: ')}"
    return found


def told(who: str, words: str | None, said: str) -> str:
    """Compare a message with the words that were expected."""
    if not said:
        return "ok" if words is None else f"wrong: the {who} was to say: {words}"
    if words is None or not any(_begins(text, words) for text in _beginnings(said)):
        return f"wrong: the {who} says: {said}"
    return f"gap: {words}"


def _begins(text: str, words: str) -> bool:
    """Return whether a text begins with words, where “…” stands for some more on the same line."""
    pattern = ".*?".join(re.escape(part) for part in words.split("…"))
    return re.match(pattern, text) is not None


def _beginnings(said: str) -> Iterator[str]:
    """Yield a message, and the text after the class of an error or the line of the finding."""
    yield said
    first, *more = said.split("\n", 1)
    while ": " in first:
        first = first.partition(": ")[2]
        yield "\n".join([first, *more])


def wrong(cases: Mapping[str, Any]) -> list[str]:
    """Return a line for everything that is not as declared."""
    return [
        f"{name} {where}: {text}"
        for name, case in cases.items()
        for kind in ("targets", "emulated")
        for where, text in case.get(kind, {}).items()
        if text.startswith("wrong")
    ]
