"""What a case's outcome is called: "ok", "gap: …", "fault: …", "found: …" or "wrong: …".

A gap is what JAX, Mosaic or `ptxas` refuse, in their words; a fault is what they compile into
something else than was asked for; "found" is what the emulation of the PTX says of it. All are
declared. What is not as declared is "wrong".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from covering import Case, Found, Look


def outcome(case: Case, arch: str, version: str, said: str, found: Found | None) -> str:
    """Return the outcome of compiling a case for an architecture.

    Args:
        case: what is declared of it.
        arch: the architecture.
        version: JAX's version.
        said: the compiler's message where it did not compile.
        found: what it compiled to.
    """
    words = case.gap(version, arch)
    if found is None:
        return told("compiler", words, said)
    if words is not None:
        return f"wrong: it compiles, and was to say: {words}"
    looks = [look for look in case.looks if look.applies(arch, version)]
    verdicts = [text for look in looks if (text := verdict(look, found))]
    return "; ".join(worst(verdicts)) or "ok"


def verdict(look: Look, found: Found) -> str:
    """Return what a look comes to, "" if it is as it should be."""
    try:
        wrong = look.wrong(found)
    except Exception as error:  # what is looked for is not even there
        return f"wrong: {look.says}: {type(error).__name__}: {error}"
    if look.fault:
        return f"fault: {look.fault}" if wrong else f"wrong: {look.says}, and was to be a fault"
    return f"wrong: {wrong}" if wrong else ""


def worst(verdicts: Iterable[str]) -> list[str]:
    """Return those verdicts that are wrong, or all if none is."""
    kept = list(verdicts)
    return [one for one in kept if one.startswith("wrong")] or kept


def numbers(case: Case, version: str, said: str) -> str:
    """Return the outcome of interpreting a case; `said` is "" where its numbers agree."""
    return told("interpreter", case.unnumbered(version), said)


def emulated(case: Case, version: str, arch: str, said: str) -> str:
    """Return the outcome of emulating a case for an architecture.

    A gap is what the emulator does not know or nobody can know; other words that are declared are
    found: what JAX made of the kernel, or the kernel itself, is wrong.
    """
    kind, _, why = said.partition(": ")
    if kind == "undefined":
        return f"gap: {why}"
    outcome_told = told("emulator", case.ends(version, arch), said)
    if kind != "UnsupportedError" and outcome_told.startswith("gap: "):
        return f"found: {outcome_told.removeprefix('gap: ')}"
    return outcome_told


def told(who: str, words: str | None, said: str) -> str:
    """Compare what was said with the words that were expected, which say why there is a gap."""
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
    """Yield a message, and what follows the class of an error or the line where it was found."""
    yield said
    first, *more = said.split("\n", 1)
    while ": " in first:
        first = first.partition(": ")[2]
        yield "\n".join([first, *more])


def wrong(all_results: Mapping[str, Any]) -> list[str]:
    """Return a line for everything that is not as declared."""
    lines = []
    for name, case in all_results["cases"].items():
        emulated_on = {f"emulated for {a}": text for a, text in case.get("emulated", {}).items()}
        others = {"interpreter": case.get("numbers", ""), **emulated_on}
        for where, text in [*case["targets"].items(), *others.items()]:
            if text.startswith("wrong"):
                lines.append(f"{all_results['declared'][name]['file']} {name} {where}: {text}")
    return lines
