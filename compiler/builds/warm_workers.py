"""Workers that stay between builds: JAX imported, XLA started, no module of the user's.

What a process has imported is compiled as it was then, so a worker serves one build, and another
gets ready in the background for the next, one for each architecture. A server that forks would save
this second of work, but threads of XLA and LLVM do not survive a fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

from pallasc.cache.store import Store
from pallasc.compiler.builds.compile_misses import open_pool
from pallasc.compiler.builds.options import Options
from pallasc.compiler.toolchain.context import Context
from pallasc.compiler.toolchain.setup import Setup, prepare
from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.compiler.workers.capacity import find_capacity
from pallasc.compiler.workers.messages import Introduction
from pallasc.compiler.workers.pool import Pool
from pallasc.specs.spec import Variant


class WarmWorkers:
    """The toolchain and the workers of several builds with the same options; a context manager.

    Args:
        options: options of the builds.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._setup: Setup | None = None
        self._pool: Pool | None = None
        self._most = 0
        self._of_setup, self._of_pool = ExitStack(), ExitStack()

    def __enter__(self) -> WarmWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def setup(self) -> Setup:
        """Return the installed toolchain; one that has changed gets other workers.

        Raises:
            ToolError: the toolchain is incomplete.
        """
        ptxas = self._options.ptxas
        if self._setup is None or self._setup.toolchain != find_toolchain(ptxas):
            self._close()
            self._setup = self._of_setup.enter_context(prepare(ptxas))
        return self._setup

    def pool(self, tasks: int) -> Pool:
        """Return the workers, as many and with the limits that a build of `tasks` variants has.

        The limits are those of the first build with as many: free memory is less while workers of
        this watch have some of it.

        Raises:
            ToolError: the toolchain is incomplete.
        """
        setup = self.setup()
        most = min(tasks, find_capacity().cores)
        if self._pool is None or self._most != most:
            self._of_pool.close()
            self._most = most
            self._pool = self._of_pool.enter_context(open_pool(self._options, setup, tasks))
        return self._pool

    def keep_ready(self, variants: Sequence[Variant], context: Context, store: Store) -> None:
        """Have workers get ready for the next build, one for each architecture.

        They are not more than such a build runs at the same time.

        Args:
            variants: those of the last build; what is likely to be compiled next comes first.
            context: what identified the toolchain in the last build.
            store: the store.

        Raises:
            ToolError: the toolchain is incomplete, or a worker cannot be started.
        """
        pool = self.pool(len(variants))
        pool.context = plain = Introduction.of(self.setup(), context, store)
        contexts: dict[str, Introduction] = {}
        for variant in variants:
            if variant.target.arch not in contexts and len(contexts) < pool.jobs:
                contexts[variant.target.arch] = replace(plain, rehearsal=variant.target)
        pool.keep_ready(contexts)

    def _close(self) -> None:
        self._of_pool.close()
        self._of_setup.close()
        self._setup = self._pool = None
