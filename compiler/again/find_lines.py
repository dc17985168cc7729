"""Find the user's source lines of the PTX of compiled variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pallasc.cache.store import Store
from pallasc.compiler.again.once_more import answers
from pallasc.compiler.lowering.line_tables import LineTable
from pallasc.compiler.toolchain.setup import Setup
from pallasc.compiler.workers.messages import Failed, FindLines, LinesFound
from pallasc.errors import CompileError, PallascError
from pallasc.specs.spec import Variant

Tables = Mapping[str, LineTable]
"""By the digest of the PTX."""


def find_lines(
    kernels: Sequence[tuple[Variant, Mapping[str, str]]],
    setup: Setup,
    store: Store,
    *,
    code: Sequence[Mapping[str, str]] | None = None,
    jobs: int = 1,
    timeout_s: float | None = None,
) -> list[Tables | PallascError]:
    """Return the source lines of the kernels of variants, each with the PTX that ships, by digest.

    A variant is compiled once more for it. Where that fails, takes too long or gives other code,
    the error stands in the place of the tables.

    Args:
        kernels: the variants, each with the PTX that ships, by digest.
        setup: the toolchain.
        store: has the digests of its files.
        code: for each variant, the digests of the machine code that ships, by that of its PTX:
            then that has to be equal, too.
        jobs: how many are compiled at the same time.
        timeout_s: how long one may take.

    Raises:
        ToolError: a compiling process cannot be started.
    """

    def request(number: int, env: Mapping[str, str | None]) -> FindLines:
        variant, ptx = kernels[number]
        return FindLines(variant=variant, ptx=ptx, env=env, code=code[number] if code else {})

    tables: list[Tables | PallascError] = [{} for _ in kernels]
    variants = [variant for variant, _ in kernels]
    purpose = "finds the lines of"
    for number, answer in answers(
        variants, request, setup, store, purpose=purpose, jobs=jobs, timeout_s=timeout_s
    ):
        if isinstance(answer.reply, LinesFound):
            tables[number] = answer.reply.tables
        elif isinstance(answer.reply, Failed):
            tables[number] = answer.reply.error
        else:
            gone = f"the process that {purpose} {variants[number].id} sent no answer"
            tables[number] = answer.error or CompileError(gone)
    return tables
