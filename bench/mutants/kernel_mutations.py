"""Mutants of kernels at source level: each differs from its source in one place.

A mutant is named kernel/function:line:operator. Edits keep all line numbers, so that a line of a
mutant corresponds to the line of its source with the same number.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WAITS = frozenset({"barrier_wait", "wgmma_wait", "wait_smem_to_gmem", "wait_load_tmem"})
ARRIVALS = frozenset({"barrier_arrive", "tcgen05_commit_arrive"})
COPIES = frozenset({"copy_gmem_to_smem", "copy_smem_to_gmem"})
_OTHERS = {"commit_smem", "commit_smem_to_gmem_group", "semaphore_signal", "semaphore_wait"}
SYNCHRONISATIONS = WAITS | ARRIVALS | _OTHERS
_SLOTS = frozenset({"slot", "tma_slot", "wait_slot", "acc_slot", "wg_idx"})
_WEAKER = {ast.GtE: ">", ast.Gt: ">=", ast.Lt: "<=", ast.LtE: "<"}
_LOOP = [(0, " + 1", "count loop from+1"), (1, " - 1", "count loop to-1")]
_ADDED = {
    "wgmma_wait": [(0, " + 1", "weaken wgmma_wait n+1")],
    "wait_smem_to_gmem": [(0, " + 1", "weaken wait_smem_to_gmem n+1")],
    "rem": [(0, " + 1", "slot rem+1"), (1, " - 1", "slot rem n-1")],
    "ds": [(0, " + 8", "index ds+8")],
    "loop": _LOOP,
    "fori_loop": _LOOP,
}
"""By function: the number of the changed argument, the text added to it, and the operator."""
_ACCUMULATE = [("True", "always"), ("False", "never")]
_OPERATORS = {ast.GtE: ">=", ast.Gt: ">", ast.Lt: "<", ast.LtE: "<="}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change to a source.

    Attributes:
        function: the innermost function that contains the change.
        line: the first line of the change.
        last: the last line of the change.
        target: the line that a statement was moved to; `line` if no statement was moved.
        operator: the kind of change, and the name of what was changed.
        source: the whole changed source.
    """

    function: str
    line: int
    last: int
    target: int
    operator: str
    source: str

    @property
    def name(self) -> str:
        """The mutant's name within its kernel."""
        return f"{self.function}:{self.line}:{self.operator}"


def mutants(
    source: str, functions: Sequence[str], *, own: Sequence[str] = (), swaps: Sequence[str] = ()
) -> list[Mutant]:
    """Return all mutants of functions of a module, sorted by line.

    Args:
        source: the module's source.
        functions: names of the top-level functions to change.
        own: names of the kernel's own functions that synchronize.
        swaps: names of barriers; mutants use the next barrier of the list instead of a barrier.
    """
    maker = _Maker(source, frozenset(own), tuple(swaps))
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            maker.function(node)
    found: dict[str, Mutant] = {}
    for mutant in sorted(maker.found, key=lambda m: (m.line, m.operator)):
        found.setdefault(mutant.source, mutant)
    return list(found.values())


class _Maker:
    """Walks through functions and collects their mutants in `found`."""

    def __init__(self, source: str, own: frozenset[str], swaps: tuple[str, ...]) -> None:
        self.source = source
        self.own = own
        self.swaps = swaps
        self.found: list[Mutant] = []
        self._function = ""
        self._starts = [0]
        for line in source.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def function(self, node: ast.FunctionDef) -> None:
        """Collect the mutants of a function and of its inner functions."""
        outer, self._function = self._function, node.name
        for decorator in node.decorator_list:
            self._expressions(decorator)
        self._block(node.body)
        self._function = outer

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for index, statement in enumerate(body):
            name = self._synchronises(statement)
            if name:
                self._synchronisation(statement, name, body, index)
            elif _called(statement) in COPIES:
                self._replace(statement, "pass", f"delete {_called(statement)}")
            if isinstance(statement, ast.FunctionDef):
                self.function(statement)
                continue
            if not isinstance(statement, ast.If | ast.While):
                for child in ast.iter_child_nodes(statement):
                    if not isinstance(child, ast.stmt):
                        self._expressions(child)
            for inner in ("body", "orelse"):
                if isinstance(block := getattr(statement, inner, None), list):
                    self._block(block)

    def _synchronises(self, statement: ast.stmt) -> str:
        """Return the synchronizing function that a statement calls, "" if it calls none."""
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return ""
        call = statement.value
        inner = call.args if isinstance(call.func, ast.Call) else ()
        names = map(_name, (call.func, *inner))
        return next((n for n in names if n in SYNCHRONISATIONS or n in self.own), "")

    def _synchronisation(
        self, statement: ast.Expr, name: str, body: Sequence[ast.stmt], index: int
    ) -> None:
        self._replace(statement, "pass", f"delete {name}")
        if name in ARRIVALS | self.own | {"barrier_wait"}:
            text = self._text(statement)
            if "\n" not in text:
                self._replace(statement, f"{text}; {text}", f"twice {name}")
        if index + 1 < len(body) and _does_something(body[index + 1]):
            self._exchange(statement, body[index + 1], f"later {name}")
        if index and _does_something(body[index - 1]):
            self._exchange(body[index - 1], statement, f"earlier {name}")

    def _expressions(self, root: ast.AST) -> None:
        for node in ast.walk(root):
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Compare) and len(node.ops) == 1:
                self._comparison(node)
            elif isinstance(node, ast.Subscript):
                self._subscript(node)

    def _call(self, call: ast.Call) -> None:
        name = _name(call.func)
        for at, added, operator in _ADDED.get(name, ()):
            if len(call.args) > at:
                self._add(call.args[at], added, operator)
        if name == "wait_smem_to_gmem" and call.args and not call.keywords:
            self._add(call.args[0], ", wait_read_only=True", f"weaken {name} read-only")
        elif name in ("Barrier", "ClusterBarrier"):
            self._barrier(call)
        elif name == "BlockSpec":
            self._block_spec(call)
        if name in ARRIVALS | COPIES | {"barrier_wait", "tcgen05_mma"}:
            self._swap(call, name)
        if name == "copy_gmem_to_smem" and len(call.args) == 3:
            self._half(call)
        for keyword in call.keywords:
            self._keyword(keyword)

    def _keyword(self, keyword: ast.keyword) -> None:
        value, text = keyword.value, self._text(keyword.value)
        for new, operator in {
            "accumulate": [(b, f"count accumulate {n}") for b, n in _ACCUMULATE],
            "delay_release": [(f"({text}) - 1", "count delay_release-1")],
            "orders_tensor_core": [("False", "weaken orders_tensor_core")],
            "wait_read_only": [("True", "weaken wait_read_only")],
        }.get(keyword.arg or "", ()):
            if text not in ("delay_release", new):
                self._replace(value, new, operator)

    def _barrier(self, call: ast.Call) -> None:
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        if (count := named.get("num_arrivals")) is not None:
            self._add(count, " + 1", "count arrivals+1")
            if self._text(count) != "1":
                self._add(count, " - 1", "count arrivals-1")
        else:
            text = self._text(call)
            more = text[:-1] + (", " if call.keywords else "") + "num_arrivals=2)"
            self._replace(call, more, "count arrivals+1")
        if (count := named.get("num_barriers")) is not None:
            self._add(count, " - 1", "count barriers-1")

    def _block_spec(self, call: ast.Call) -> None:
        for value in [*call.args, *(keyword.value for keyword in call.keywords)]:
            if isinstance(value, ast.Lambda) and isinstance(value.body, ast.Tuple):
                names = {argument.arg for argument in value.args.args}
                for element in value.body.elts:
                    other = "" if _name(element) in names else " other"
                    self._add(element, " + 1", f"index map{other}+1")

    def _swap(self, call: ast.Call, name: str) -> None:
        for argument in call.args:
            for node in ast.walk(argument):
                if isinstance(node, ast.Name) and node.id in self.swaps:
                    at = self.swaps.index(node.id)
                    other = self.swaps[(at + 1) % len(self.swaps)]
                    self._replace(node, other, f"swap {node.id} in {name}")

    def _half(self, call: ast.Call) -> None:
        """Copy only half of an array: the first half of the source to that of the target."""
        source, target, _ = call.args
        first, second = (
            f"({text}).at[pl.ds(0, ({text}).shape[0] // 2)]"
            for text in (self._text(source), self._text(target))
        )
        both = first + self._slice(self._end(source), self._start(target)) + second
        lines = (source.lineno, target.end_lineno or target.lineno)
        self._edit(self._start(source), self._end(target), both, "bytes half of copy", lines)

    def _comparison(self, node: ast.Compare) -> None:
        kind = type(node.ops[0])
        left, right = node.left, node.comparators[0]
        if kind in _WEAKER:
            text = f"{self._text(left)} {_WEAKER[kind]} {self._text(right)}"
            self._replace(node, text, f"count {_OPERATORS[kind]} to {_WEAKER[kind]}")
        elif kind is ast.Eq and isinstance(right, ast.Constant) and right.value in (0, 1):
            text = f"{self._text(left)} == {1 - right.value}"
            self._replace(node, text, f"count == {right.value}")

    def _subscript(self, node: ast.Subscript) -> None:
        index = node.slice
        is_at = isinstance(node.value, ast.Attribute) and node.value.attr == "at"
        if is_at and _name(index) in _SLOTS:
            what = _name(node.value.value)  # type: ignore[attr-defined]
            self._replace(index, "0", f"slot {what}[0]")
        if _name(node.value).endswith("_gmem") and isinstance(index, ast.BinOp):
            self._add(index, " + 1", "index +1")

    # Text.

    def _start(self, node: ast.AST) -> int:
        line = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])  # type: ignore[attr-defined]
        return self._starts[line - 1] + node.col_offset  # type: ignore[attr-defined, no-any-return]

    def _end(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined, no-any-return]

    def _slice(self, begin: int, end: int) -> str:
        return self.source.encode()[begin:end].decode()

    def _text(self, node: ast.AST) -> str:
        return self._slice(self._start(node), self._end(node))

    def _replace(self, node: ast.expr | ast.stmt, text: str, operator: str) -> None:
        lines = (node.lineno, node.end_lineno or node.lineno)
        self._edit(self._start(node), self._end(node), text, operator, lines)

    def _add(self, node: ast.expr, text: str, operator: str) -> None:
        self._replace(node, self._text(node) + text, operator)

    def _exchange(self, first: ast.stmt, second: ast.stmt, operator: str) -> None:
        between = self._slice(self._end(first), self._start(second))
        text = self._text(second) + between + self._text(first)
        last = second.end_lineno or second.lineno
        moved, target = second, first.lineno
        if operator.startswith("later"):
            moved, target = first, last - ((first.end_lineno or first.lineno) - first.lineno)
        lines = (moved.lineno, last)
        self._edit(self._start(first), self._end(second), text, operator, lines, target)

    def _edit(
        self, begin: int, end: int, text: str, operator: str, lines: tuple[int, int], to: int = 0
    ) -> None:
        # Empty lines have no effect, neither inside parentheses nor after a statement.
        text += "\n" * (self._slice(begin, end).count("\n") - text.count("\n"))
        data = self.source.encode()
        source = (data[:begin] + text.encode() + data[end:]).decode()
        try:
            ast.parse(source)
        except SyntaxError:
            return
        self.found.append(Mutant(self._function, *lines, to or lines[0], operator, source))


def _called(statement: ast.stmt) -> str:
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return _name(statement.value.func) if is_call else ""  # type: ignore[attr-defined]


def _does_something(statement: ast.stmt) -> bool:
    """Return True if exchanging the statement with a synchronization may have an effect."""
    if isinstance(statement, ast.FunctionDef):
        return bool(statement.decorator_list)
    if not isinstance(statement, ast.Assign):
        return not isinstance(statement, ast.Return | ast.Pass)
    called = {_name(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)}
    writes = any(isinstance(target, ast.Subscript) for target in statement.targets)
    return writes or not called <= {"ds", "rem", "div", "slice", "axis_index", "array", ""}


def _name(node: ast.AST) -> str:
    """Return the last part of a dotted name, "" if the node is not a name."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def sample(found: Sequence[Mutant], most: int) -> Iterator[Mutant]:
    """Yield mutants in order, at most `most` of each kind of operator."""
    counts: dict[str, int] = {}
    for mutant in found:
        kind = " ".join(mutant.operator.split()[:2])
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= most:
            yield mutant
