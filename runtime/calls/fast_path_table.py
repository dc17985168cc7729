"""Generated functions of a kernel with several signatures, and the dispatch between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pallasc.runtime.calls.fast_path import FastPaths, make_fast_paths
from pallasc.runtime.calls.generated import BUILTINS, Function, compile_function, parameter_names
from pallasc.runtime.calls.launch import Route
from pallasc.runtime.matching.arrays import Dialect
from pallasc.runtime.matching.candidates import Candidate
from pallasc.specs.artifacts.signature import Signature, input_names


class FastPathTable:
    """The functions that later calls of one kernel go through.

    Each framework with a dialect gets generated functions. Those of the most recently added
    framework are tried first.

    Args:
        variants: all variants of the kernel.
        slow: the slow paths, for "call" and "into".
        success: the driver's success code.
        checks: as in `make_fast_paths`.
    """

    def __init__(
        self,
        variants: Sequence[Candidate],
        slow: Mapping[str, Function],
        success: object,
        *,
        checks: bool,
    ) -> None:
        self._variants = variants
        self._success = success
        self._checks = checks
        self._tables: dict[type, _DialectTable] = {}
        self._head = slow

    def add(self, route: Route, dialect: Dialect) -> FastPaths | None:
        """Return the functions to call from now on, None if nothing changes.

        Args:
            route: a route of the kernel.
            dialect: the framework of its arrays.
        """
        table = self._tables.get(dialect.kind)
        if table is None:
            table = _DialectTable(
                self._variants, dialect, self._head, self._success, checks=self._checks
            )
            self._tables[dialect.kind] = table
            self._head = table.slow_ways()
        fast_paths = table.add(route)
        return fast_paths if table is list(self._tables.values())[-1] else None


class _DialectTable:
    """The generated functions of one kernel for one framework.

    If all variants take the same arrays, there is one pair of functions. Otherwise there is a pair
    for each route, called by dispatchers that check the differences: shapes or dtypes of some
    arrays.

    Args:
        variants: all variants of the kernel.
        dialect: the framework.
        slow: for "into" and "call", the function to call for anything unusual.
        success, checks: as in `make_fast_paths`.
    """

    def __init__(
        self,
        variants: Sequence[Candidate],
        dialect: Dialect,
        slow: Mapping[str, Function],
        success: object,
        *,
        checks: bool,
    ) -> None:
        self._dialect = dialect
        self._slow = slow
        self._success = success
        self._checks = checks
        self._questions = questions(variants)
        self._differ_in_layout = differ_in_layout(variants)
        self._tables: dict[str, dict[Any, Function]] = {"call": {}, "into": {}}
        self._seen: dict[Route, FastPaths | None] = {}
        self._current: FastPaths | None = None

    def add(self, route: Route) -> FastPaths | None:
        """Return the functions to call from now on, None if nothing changes."""
        if route in self._seen:
            return None
        made = (
            None
            if self._differ_in_layout
            else make_fast_paths(
                route, self._dialect, self._slow, self._success, checks=self._checks
            )
        )
        self._seen[route] = made
        if made is None:
            return None
        if self._questions:
            key = self._answer(route.signature)
            first = not self._tables["call"]
            self._tables["call"][key] = made.call
            self._tables["into"][key] = made.into
            made = self._dispatchers(route.signature) if first else None
        self._current = made or self._current
        return made

    def slow_ways(self) -> dict[str, Function]:
        """Return this table's functions as the slow path of another framework's."""
        return {kind: partial(self._go_on, kind) for kind in ("call", "into")}

    def _go_on(
        self, kind: str, arrays: Any, more: Any, out: Any, stream: Any, named: Mapping[str, object]
    ) -> Any:
        if self._current is None:
            return self._slow[kind](arrays, more, out, stream, named)
        if kind == "call":
            return self._current.call(*arrays, *more, stream=stream, **named)
        return self._current.into(*arrays, *more, out=out, stream=stream, **named)

    def _answer(self, signature: Signature) -> tuple[Any, ...]:
        """Return the values that arrays of this signature have for the questions."""
        return tuple(
            signature.inputs[leaf].shape
            if what == "shape"
            else self._dialect.dtypes[signature.inputs[leaf].dtype]
            for leaf, what in self._questions
        )

    def _dispatchers(self, signature: Signature) -> FastPaths:
        return FastPaths(*(self._dispatcher(signature, kind) for kind in ("into", "call")))

    def _dispatcher(self, signature: Signature, kind: str) -> Function:
        trees = input_names(signature)
        names = parameter_names([name for name, _ in trees])
        by_leaf = {tree: name for name, (_, tree) in zip(names, trees, strict=True)}
        asked = [
            getattr(self._dialect, what).format(x=by_leaf[leaf]) for leaf, what in self._questions
        ]
        is_kind = " and ".join(
            f"(_type({by_leaf[leaf]}) is _Kind or _type({by_leaf[leaf]}) in _kinds)"
            for leaf in dict.fromkeys(leaf for leaf, _ in self._questions)
        )
        out = "out=_MISSING, " if kind == "into" else ""
        listed = "".join(f"{name}, " for name in names)
        source = [
            f"def _front({''.join(f'{name}=_MISSING, ' for name in names)}*_more, {out}"
            "stream=None, **_params):",
            f"    if not _more and not _params and {is_kind}:",
            f"        _chosen = _table.get(({', '.join(asked)},))",
            "        if _chosen is not None:",
            f"            return _chosen({listed}{'out=out, ' if out else ''}stream=stream)",
            f"    return _slow(({listed}), _more, {'out' if out else '_MISSING'}, stream, _params)",
        ]
        values = {
            **self._dialect.values,
            "_Kind": self._dialect.kind,
            "_kinds": self._dialect.other_kinds,
            **BUILTINS,
            "_table": self._tables[kind],
            "_slow": self._slow[kind],
        }
        return compile_function(source, values, kind)


def questions(variants: Sequence[Candidate]) -> list[tuple[int, str]]:
    """Return the array number and `shape` or `dtype` for each property in which variants differ."""
    questions = []
    rows = zip(*(variant.arrays for variant in variants), strict=False)
    for leaf, types in enumerate(rows):
        dtypes, shapes = ({array[part] for array in types} for part in (0, 1))
        questions += [(leaf, "shape")] * (len(shapes) > 1) + [(leaf, "dtype")] * (len(dtypes) > 1)
    return questions


def differ_in_layout(variants: Sequence[Candidate]) -> bool:
    """Return True if variants differ in layout, which no dialect expression can query."""
    layouts = {tuple(array.layout for array in variant.facts.inputs) for variant in variants}
    return len(layouts) > 1
