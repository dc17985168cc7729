"""Generated functions of a kernel with several signatures, and the choice between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallasc.runtime.front import (
    BUILTINS,
    Dialect,
    Fronts,
    Function,
    compile_function,
    make_fronts,
    parameter_names,
)
from pallasc.runtime.routes import Route
from pallasc.runtime.selection import Candidate
from pallasc.runtime.signature import Signature, input_names


class FrontTable:
    """The generated functions of one kernel for one framework.

    Where all variants take the same arrays, there is one pair of functions; otherwise a pair for
    each route, behind functions that look at what differs: the shapes or dtypes of some arrays.

    Args:
        variants: all variants of the kernel.
        dialect: the framework.
        call, into: the slow paths.
        success: the driver's code for it.
        checks: as in `make_fronts`.
    """

    def __init__(
        self,
        variants: Sequence[Candidate],
        dialect: Dialect,
        *,
        call: Function,
        into: Function,
        success: Any,
        checks: bool,
    ) -> None:
        self._dialect = dialect
        self._slow = {"call": call, "into": into}
        self._success = success
        self._checks = checks
        self._questions = _questions(variants)
        self._tables: dict[str, dict[Any, Function]] = {"call": {}, "into": {}}
        self._seen: dict[Route, Fronts | None] = {}

    def add(self, route: Route, kind: type) -> Fronts | None:
        """Return the functions to call from now on, None where nothing changes."""
        if kind is not self._dialect.kind or route in self._seen:
            return None
        made = make_fronts(route, self._dialect, self._slow, self._success, checks=self._checks)
        self._seen[route] = made
        if made is None or not self._questions:
            return made
        key = self._answer(route.signature)
        first = not self._tables["call"]
        self._tables["call"][key] = made.call
        self._tables["into"][key] = made.into
        return self._dispatchers(route.signature) if first else None

    def _answer(self, signature: Signature) -> tuple[Any, ...]:
        """Return what arrays of this signature answer to the questions."""
        return tuple(
            signature.inputs[leaf].shape
            if what == "shape"
            else self._dialect.dtypes[signature.inputs[leaf].dtype]
            for leaf, what in self._questions
        )

    def _dispatchers(self, signature: Signature) -> Fronts:
        return Fronts(*(self._dispatcher(signature, kind) for kind in ("into", "call")))

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


def _questions(variants: Sequence[Candidate]) -> list[tuple[int, str]]:
    """Return what to look at: number of an array, and `shape` or `dtype`, where variants differ."""
    found = []
    for leaf, types in enumerate(zip(*(one.arrays for one in variants), strict=False)):
        dtypes, shapes = ({one[part] for one in types} for part in (0, 1))
        found += [(leaf, "shape")] * (len(shapes) > 1) + [(leaf, "dtype")] * (len(dtypes) > 1)
    return found
