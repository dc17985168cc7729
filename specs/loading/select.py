"""Select variants with an expression, and replace the targets of specs.

Grammar of an expression:
    either := both ("or" both)*
    both   := factor ("and" factor)*
    factor := "not" factor | "(" either ")" | term
    term   := parameter "=" pattern | "target=" pattern | "name=" pattern | pattern

In a value, `*` and `?` are the only wildcards, so that an array can be written unchanged:
`q=bf16[32,512]`. A bare pattern with `*`, `?`, or `[` must match a whole name or id of a kernel: in
names, `[…]` is a set of characters; in ids, brackets are literal. Any other pattern matches a part
of the name, ignoring case. A term may also be the id of a variant, with or without its target. Use
quotes for spaces and parentheses in a term, `layout="row major"`, unless the whole expression is
an id with its target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from types import CodeType
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from pallasc.errors import SpecError
from pallasc.specs.canonical import Scalar, plain
from pallasc.specs.gpus import resolve_target
from pallasc.specs.spec import Spec
from pallasc.specs.spelling import nearest, suggestion, values_text


class Selectable(Protocol):
    """An item that an expression can select: a variant, an entry of a bundle, a row of a table."""

    @property
    def id(self) -> str:
        """The full id."""

    @property
    def name(self) -> str:
        """The kernel."""

    @property
    def params(self) -> Sequence[tuple[str, Scalar]]:
        """Its parameters with their values."""

    @property
    def target(self) -> Any:
        """The target, with `name` and `arch`."""


S = TypeVar("S", bound=Selectable)

_TOKEN = re.compile(r'[()]|(?:[^\s()"]|"[^"]*")+|"')
_ASSIGNMENT = re.compile(r"(?P<key>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_MALFORMED = re.compile(r"\w*(==|!=|<|>|=$)|=")
"""Matches the beginning of a malformed comparison: `n==1`, `n>1`, `n=`, `=1`."""
_GLOB = re.compile(r"[*?\[]")
_OPERATORS = ("and", "or", "not", "(", ")")
_NOT_COMBINED = re.compile(r"[\])] \(|\( \)")
"""Matches text that Python would accept, such as a call, but that is not in the grammar."""
_LONGEST = 2000
_COMBINE = "Combine names and param=value (no spaces) with and, or, not and parentheses."


def select(variants: Iterable[S], expression: str, *, noun: str = "variants") -> list[S]:
    """Return the variants that an expression selects, in their order.

    Args:
        variants: variants or other selectable items.
        expression: see the grammar.
        noun: plural noun for the items in messages.

    Raises:
        SpecError: the expression is malformed, or selects none of them.
    """
    everything = list(variants)
    # The parameters in an id may have spaces and parentheses, which an expression must quote.
    if named := [variant for variant in everything if variant.id == expression]:
        return named
    terms, code = _compiled(expression)

    def is_selected(variant: S) -> bool:
        # `fits` is the only name in the code.
        return bool(eval(code, {"fits": [matches(term, variant) for term in terms]}))

    chosen = [variant for variant in everything if is_selected(variant)]
    if not chosen:
        raise SpecError(
            f"-k {expression!r} selects none of {len(everything)} {noun}.",
            hint=_no_match_hint(terms, everything),
        )
    return chosen


def retarget(specs: Iterable[Spec], names: Sequence[str]) -> list[Spec]:
    """Return the specs with their targets replaced; without names, nothing changes.

    If several specs have the same name, such as one spec for each architecture, a target goes to
    the specs that declare its architecture, or to all if none does.

    Raises:
        SpecError: a target does not exist.
    """
    everything = list(specs)
    if not names:
        return everything
    declared: dict[str, set[str]] = {}
    for spec in everything:
        declared.setdefault(spec.name, set()).update(_archs(spec, spec.targets))
    retargeted = []
    for spec in everything:
        targets = tuple(dict.fromkeys(resolve_target(name, spec.models).name for name in names))
        others = declared[spec.name] - _archs(spec, spec.targets)
        targets = tuple(name for name in targets if not _archs(spec, [name]) & others)
        if targets:
            retargeted.append(replace(spec, targets=targets))
    return retargeted


def _archs(spec: Spec, names: Iterable[str]) -> set[str]:
    return {resolve_target(name, spec.models).arch for name in names}


def matches(term: str, variant: Selectable) -> bool:
    """Return True if a term selects a variant."""
    if term == variant.id:
        return True
    assignment = _ASSIGNMENT.fullmatch(term)
    if assignment is None:
        return _matches_name(term, variant)
    value = assignment["value"]
    return any(_fits(plain(known), value) for known in _values(variant, assignment["key"]))


def _matches_name(term: str, variant: Selectable) -> bool:
    if not _GLOB.search(term):
        return term.lower() in variant.name.lower()
    point = variant.id.rpartition("@")[0]
    return term == point or fnmatchcase(variant.name, term) or _fits(variant.id, term)


def _fits(text: str, pattern: str) -> bool:
    """Return True if a pattern matches a text; `*` and `?` are the only wildcards."""
    return text == pattern or fnmatchcase(text, pattern.replace("[", "[[]"))


def _values(variant: Selectable, key: str) -> list[Scalar]:
    if key == "target":
        return [variant.target.name, variant.target.arch]
    params = dict(variant.params)
    if key in params:
        return [params[key]]
    return [variant.name] if key == "name" else []


def _no_match_hint(terms: list[str], variants: Sequence[Selectable]) -> str | None:
    for term in terms:
        if not any(matches(term, variant) for variant in variants):
            return _term_hint(term, variants)
    return "Each term selects some variant, but no variant fits all of them." if variants else None


def _term_hint(term: str, variants: Sequence[Selectable]) -> str | None:
    """Return a suggestion for a term that selects nothing."""
    keys = {key for variant in variants for key, _ in variant.params} | {"name", "target"}
    key, equals, value = term.partition("=")
    if not equals:
        return suggestion(term, [variant.name for variant in variants], otherwise="Kernels")
    if key not in keys:
        return suggestion(key, keys, otherwise="Parameters")
    known = [own for variant in variants for own in _values(variant, key)]
    near = nearest(value, map(plain, known))
    quotes = '"' if near and re.search(r"[\s()]", near) else ""
    first = f"Did you mean {f'{key}={quotes}{near}{quotes}'!r}? " if near else ""
    return f"{first}Values of {key}: {values_text(known)}."


def _compiled(text: str) -> tuple[list[str], CodeType]:
    """Return the terms of an expression, and its Python code, in which `fits[n]` is term n."""
    if len(text) > _LONGEST:
        raise SpecError(f"-k: an expression has at most {_LONGEST} characters.")
    terms: list[str] = []
    words: list[str] = []
    for token in _TOKEN.findall(text):
        word = token
        if token not in _OPERATORS:
            word = f"fits[{len(terms)}]"
            terms.append(token.replace('"', ""))
        if token == '"':
            raise _error(text, "a quote is not closed")
        if _MALFORMED.match(token):
            hint = "Write m=1024, m=1*, or not m=1024."
            raise _error(text, f"{token} is not param=value", hint)
        words.append(word)
    code = " ".join(words)
    try:
        if _NOT_COMBINED.search(code):
            raise SyntaxError
        return terms, compile(code, "-k", "eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise _error(text, "names and parameters are not combined correctly") from None


def _error(text: str, what: str, hint: str = _COMBINE) -> SpecError:
    return SpecError(f"-k {text!r}: {what}.", hint=hint)
