"""Supported instructions except arithmetic, and the functions that build their steps.

A form is a pattern of opcodes: `[...]` is optional, `(a|b)` is one of several, and `<…>` stands for
one of `PARTS`. An instruction that matches no form is rejected, so that no modifier is ignored. A
step is the function that executes an instruction.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType

from pallasc.emulator.instructions import barriers, control, copies, matrices, memory, tcgen05
from pallasc.emulator.instructions.builder import Build, Builder, refusal
from pallasc.emulator.machine.warp import BLOCKED, Step, Warp
from pallasc.emulator.ptx.syntax import Instruction

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "n": "a number",
        "scope": "(cta|cluster|gpu|sys)",
        "order": "(relaxed|acquire|release|acq_rel)",
        "space": "(const|global|local|param[::(entry|func)]|shared[::(cta|cluster)])",
        "type": "(b8|u8|s8|b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64)",
        "dimensions": "(1d|2d|3d|4d|5d)",
        "cache": "L1::(evict_normal|evict_unchanged|evict_first|evict_last|no_allocate)",
        "prefetched": "L2::(64B|128B|256B)",
    }
)
"""Expansions of the names between `<` and `>`."""
_SHARED = "shared[::(cta|cluster)]"
_ATOMIC = f"[.<order>][.<scope>][.(global|{_SHARED})][.<order>][.<scope>]"
_BYTES = "mbarrier::complete_tx::bytes"
_HINT = "[.L2::cache_hint]"
_GROUP = "cta_group::(1|2)"

FORMS: tuple[str, ...] = (
    # Control flow.
    "bra[.uni]",
    "(ret|exit)",
    "call[.uni]",  # only `vprintf`, and `__assertfail`, which ends the check
    "trap",  # ends the check
    "setmaxnreg.(inc|dec).sync.aligned.u32",  # waits for all lanes of the warp
    "nanosleep.u32",  # takes no time
    "griddepcontrol.(launch_dependents|wait)",  # kernels run one after the other
    # Moves and addresses.
    "mov.(pred|b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64)",  # also of vectors
    "mov.b128",  # to and from a vector of two registers
    "cvta[.to].(const|global|local|param[::entry]|shared[::(cta|cluster)]).u64",
    "isspacep.(global|local|param[::entry]|shared[::(cta|cluster)])",
    "mapa.(shared::cluster.(u32|u64)|u64)",
    "getctarank.(shared::cluster.(u32|u64)|u64)",
    # Lanes of a warp.
    "shfl.sync.(up|down|bfly|idx).b32",
    "vote.sync.((all|any|uni).pred|ballot.b32)",
    "activemask.b32",
    "redux.sync.((add|min|max).(u32|s32)|(and|or|xor).b32)",
    "redux.sync.(min|max)[.abs][.NaN].f32",
    "elect.sync",  # elects the lowest lane
    # Memory.
    # Cache hints have no effect:
    "(ld|ldu)[.(weak|volatile|relaxed.<scope>|acquire.<scope>|mmio.relaxed.sys)][.<space>]"
    "[.(ca|cg|cs|lu|cv)][.nc][.<cache>][.<prefetched>][.unified][.(v2|v4|v8)].<type>",
    "ld[.(weak|relaxed.<scope>|acquire.<scope>)][.(const|global|local|shared[::(cta|cluster)])]"
    ".b128",
    # Cache hints have no effect:
    "st[.(weak|volatile|relaxed.<scope>|release.<scope>|mmio.relaxed.sys)]"
    "[.(global|local|param[::func]|shared[::(cta|cluster)])]"
    "[.(wb|cg|cs|wt)][.<cache>][.(v2|v4|v8)].<type>",
    # Lane by lane, in order:
    f"(atom|red){_ATOMIC}.((add|min|max).(u32|s32|u64|s64)|(inc|dec).u32|(and|or|xor).(b32|b64))",
    f"atom{_ATOMIC}.((exch|cas).(b32|b64)|cas.b16)",  # lane by lane, in order
    f"(atom|red){_ATOMIC}.add.(f32|f64)",  # lane by lane, in order
    f"(atom|red){_ATOMIC}.add.noftz.(f16|f16x2|bf16|bf16x2)",  # lane by lane, in order
    "prefetch[.(global|local)].(L1|L2)",  # no effect
    "prefetch.global.L2::(evict_last|evict_normal)",  # no effect
    "prefetch[.(const|param)].tensormap",  # no effect
    "prefetchu.L1",  # no effect
    # Several devices.
    # In the order of the devices:
    "multimem.ld_reduce[.(weak|relaxed|acquire)][.<scope>][.global]"
    ".(add|min|max|and|or|xor)[.(v2|v4)].(u32|s32|b32|u64|s64|b64|f32|f64|f16x2|bf16x2)",
    # In the order of the devices:
    "multimem.ld_reduce[.(weak|relaxed|acquire)][.<scope>][.global]"
    ".add.acc::f32[.(v2|v4)].(f16x2|bf16x2)",
    "multimem.st[.(weak|relaxed|release)][.<scope>][.global][.(v2|v4)]"
    ".(u32|s32|b32|u64|s64|b64|f32|f64|f16x2|bf16x2)",
    # No vectors:
    "multimem.red[.(relaxed|release)][.<scope>][.global]"
    ".((add|min|max).(u32|s32|u64|s64)|(and|or|xor).(b32|b64)|add.(f32|f64|f16x2|bf16x2))",
    # Asynchronous copies.
    # Also with a source size or a predicate; no cache policy:
    "cp.async.(ca|cg).shared[::cta].global[.<prefetched>]",
    "cp.async.(commit_group|wait_group|wait_all)",
    f"cp.async.bulk.shared::(cta|cluster).global.{_BYTES}{_HINT}",  # cache hints have no effect
    f"cp.async.bulk.shared::cluster.shared::cta.{_BYTES}",
    f"cp.async.bulk.global.shared::cta.bulk_group{_HINT}",  # cache hints have no effect
    # Cache hints have no effect:
    f"cp.reduce.async.bulk.global.shared::cta.bulk_group{_HINT}"
    ".((add|min|max).(u32|s32|u64|s64)|(inc|dec).u32|(and|or|xor).(b32|b64)|add.(f32|f64)"
    "|(add.noftz|min|max).(f16|bf16))",
    "cp.async.bulk.(commit_group|wait_group[.read])",
    f"cp.async.bulk.prefetch.L2.global{_HINT}",  # only its bytes are counted
    # Cache hints have no effect:
    f"cp.async.bulk.tensor.<dimensions>.shared::(cta|cluster).global[.(tile|tile::gather4|im2col)]"
    f".{_BYTES}[.multicast::cluster][.{_GROUP}]{_HINT}",
    # Cache hints have no effect:
    f"cp.async.bulk.tensor.<dimensions>.global.shared::cta"
    f"[.(tile|tile::scatter4|im2col_no_offs)].bulk_group{_HINT}",
    # Cache hints have no effect:
    f"cp.reduce.async.bulk.tensor.<dimensions>.global.shared::cta"
    f".(add|min|max|inc|dec|and|or|xor)[.(tile|im2col_no_offs)].bulk_group{_HINT}",
    # Only its bytes are counted:
    f"cp.async.bulk.prefetch.tensor.<dimensions>.L2.global[.(tile|tile::gather4|im2col)]{_HINT}",
    # Stores into other blocks of a cluster.
    f"st.async[.(weak|relaxed)][.cluster][.shared::cluster].{_BYTES}[.(v2|v4)]"
    ".(b32|u32|s32|f32|b64|u64|s64|f64)",
    f"red.async[.relaxed][.cluster][.shared::cluster].{_BYTES}"
    ".((inc|dec).u32|(add|min|max).(u32|s32)|(and|or|xor).b32|add.u64)",
    # Barriers and fences.
    "(bar|barrier)[.cta].(sync|arrive)[.aligned]",
    "bar.warp.sync",
    "barrier.cluster.arrive[.(release|relaxed)][.aligned]",
    "barrier.cluster.wait[.acquire][.aligned]",
    "mbarrier.(init|inval).shared[::cta].b64",  # no generic addresses
    # No generic addresses; no wait for the returned state:
    f"mbarrier.arrive[.expect_tx][.(release|relaxed)[.(cta|cluster)]].{_SHARED}.b64",
    "mbarrier.arrive.noComplete[.release.cta].shared[::cta].b64",  # no generic addresses
    # No generic addresses:
    f"mbarrier.(expect_tx|complete_tx)[.relaxed.(cta|cluster)].{_SHARED}.b64",
    # `try_wait` returns when the phase completes; no generic addresses:
    "mbarrier.(try_wait|test_wait).parity[.(acquire|relaxed).(cta|cluster)].shared[::cta].b64",
    "fence.(sc|acq_rel|acquire|release).<scope>",  # used by the race detector
    "membar.(cta|gl|sys)",  # used by the race detector
    "fence.mbarrier_init.release.cluster",  # used by the race detector
    "fence.proxy.(alias|async[.(global|shared::(cta|cluster))])",  # used by the race detector
    "fence.proxy.tensormap::generic.(acquire|release).<scope>",  # no effect
    # Used by the race detector:
    "fence[.proxy.async::generic].(acquire.sync_restrict::shared::cluster"
    "|release.sync_restrict::shared::cta).cluster",
    # Cancels the last clusters that have not started:
    f"clusterlaunchcontrol.try_cancel.async[.shared::cta].{_BYTES}[.multicast::cluster::all].b128",
    "clusterlaunchcontrol.query_cancel.(is_canceled.pred|get_first_ctaid.v4.b32"
    "|get_first_ctaid::(x|y|z).b32).b128",
    # Matrices in registers and shared memory.
    "(ldmatrix|stmatrix).sync.aligned.m8n8.(x1|x2|x4)[.trans].shared[::cta].b16",
    "stmatrix.sync.aligned.m16n8.(x1|x2|x4).trans.shared[::cta].b8",
    "mma.sync.aligned.m16n8k(8|16).row.col.f16.f16.f16.f16",
    "mma.sync.aligned.m16n8k(8|16).row.col.f32.(f16.f16|bf16.bf16).f32",
    "mma.sync.aligned.m16n8k(4|8).row.col.f32.tf32.tf32.f32",
    "mma.sync.aligned.m16n8k(16|32).row.col.(f16.(e4m3|e5m2).(e4m3|e5m2).f16"
    "|f32.(e4m3|e5m2).(e4m3|e5m2).f32)",
    "mma.sync.aligned.(m8n8k16|m16n8k16|m16n8k32).row.col[.satfinite].s32.(s8|u8).(s8|u8).s32",
    "mma.sync.aligned.(m8n8k32|m16n8k32|m16n8k64).row.col[.satfinite].s32.(s4|u4).(s4|u4).s32",
    "mma.sync.aligned.(m8n8k4|m16n8k4|m16n8k8|m16n8k16).row.col.f64.f64.f64.f64",
    # Warpgroups.
    "wgmma.(fence|commit_group|wait_group).sync.aligned",
    "wgmma.mma_async.sync.aligned.m64n<n>k16.(f16|f32).f16.f16",
    "wgmma.mma_async.sync.aligned.m64n<n>k16.f32.bf16.bf16",
    "wgmma.mma_async.sync.aligned.m64n<n>k8.f32.tf32.tf32",
    "wgmma.mma_async.sync.aligned.m64n<n>k32.(f16|f32).(e4m3|e5m2).(e4m3|e5m2)",
    "wgmma.mma_async.sync.aligned.m64n<n>k32[.satfinite].s32.(s8|u8).(s8|u8)",
    # Tensor memory and the tensor core.
    f"tcgen05.alloc.{_GROUP}.sync.aligned[.shared::cta].b32",
    f"tcgen05.dealloc.{_GROUP}.sync.aligned.b32",
    f"tcgen05.relinquish_alloc_permit.{_GROUP}.sync.aligned",
    "tcgen05.ld.sync.aligned.(32x32b|16x64b|16x128b|16x256b|16x32bx2).x<n>[.pack::16b].b32",
    # Not `.16x32bx2`:
    "tcgen05.ld.red.sync.aligned.32x32b.x<n>.((min|max)[.abs][.NaN].f32|(min|max).(u32|s32))",
    "tcgen05.st.sync.aligned.(32x32b|16x64b|16x128b|16x256b|16x32bx2).x<n>[.unpack::16b].b32",
    "tcgen05.wait::(ld|st).sync.aligned",
    "tcgen05.fence::(before_thread_sync|after_thread_sync)",  # used by the race detector
    # Without decompression:
    f"tcgen05.cp.{_GROUP}.(128x256b|128x128b|4x256b|64x128b.warpx2::(02_13|01_23)|32x128b.warpx4)",
    # No generic addresses:
    f"tcgen05.commit.{_GROUP}.mbarrier::arrive::one.shared::cluster[.multicast::cluster].b64",
    # Not `.ashift`:
    f"tcgen05.mma[.sp].{_GROUP}.kind::(f16|tf32|f8f6f4|i8)"
    "[.collector::a::(fill|use|lastuse|discard)]",
    # Only valid scale vector sizes:
    f"tcgen05.mma[.sp].{_GROUP}.kind::(mxf8f6f4|mxf4|mxf4nvf4).block_scale"
    "[.(scale_vec::(1X|2X|4X)|block16|block32)][.collector::a::(fill|use|lastuse|discard)]",
    # Not sparse:
    "tcgen05.mma.ws.cta_group::1.kind::(f16|tf32|f8f6f4|i8)"
    "[.collector::b(0|1|2|3)::(fill|use|lastuse|discard)]",
)


def regex(pattern: str) -> str:
    """Return a form as a regular expression."""
    text = re.escape(pattern)
    for name, part in PARTS.items():
        if f"<{name}>" in text:
            text = text.replace(f"<{name}>", r"\d+" if name == "n" else regex(part))
    for escaped, plain in (
        (r"\[", "(?:"), (r"\]", ")?"), (r"\(", "(?:"), (r"\)", ")"), (r"\|", "|"),
    ):  # fmt: skip
        text = text.replace(escaped, plain)
    return text


@functools.lru_cache(maxsize=4096)
def form_of(opcode: str) -> str | None:
    """Return the form that an opcode matches, None if it is not supported."""
    forms = _by_base().get(opcode.partition(".")[0], ())
    return next((form for form in forms if _compiled(form).fullmatch(opcode)), None)


@functools.cache
def _by_base() -> Mapping[str, list[str]]:
    """Return the forms by the first part of their opcodes; a first part (a|b) counts as two."""
    found: dict[str, list[str]] = {}
    for form in FORMS:
        first = re.match(r"\(?([\w|]+)", form)
        for base in first[1].split("|") if first is not None else ():
            found.setdefault(base, []).append(form)
    return found


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(regex(pattern))


BUILDERS: Mapping[str, Build] = MappingProxyType(
    {
        "activemask": control.activemask,
        "atom": memory.atomic,
        "bar": barriers.bar,
        "barrier": barriers.barrier,
        "bra": control.bra,
        "call": memory.call,
        "clusterlaunchcontrol": barriers.build,
        "cp": copies.cp,
        "cvta": control.cvta,
        "elect": control.elect,
        "exit": control.ret,
        "fence": barriers.fence,
        "getctarank": barriers.getctarank,
        "griddepcontrol": control.nothing,
        "isspacep": control.isspacep,
        "ld": memory.ld,
        "ldmatrix": matrices.ldmatrix,
        "ldu": memory.ld,
        "mapa": barriers.mapa,
        "mbarrier": barriers.mbarrier,
        "membar": barriers.fence,
        "mma": matrices.mma,
        "mov": control.mov,
        "multimem": memory.multimem,
        "nanosleep": control.nothing,
        "prefetch": control.nothing,
        "prefetchu": control.nothing,
        "red": memory.atomic,
        "redux": control.redux,
        "ret": control.ret,
        "setmaxnreg": control.setmaxnreg,
        "shfl": control.shfl,
        "st": memory.st,
        "stmatrix": matrices.stmatrix,
        "tcgen05": tcgen05.build,
        "trap": control.trap,
        "vote": control.vote,
        "wgmma": matrices.build,
    }
)
"""Functions that build steps, by the first part of the opcode; arithmetic is in `control.build`."""


def build(instruction: Instruction, builder: Builder) -> Step:
    """Return the step that executes an instruction.

    Raises:
        UnsupportedError: the emulator does not support the instruction or one of its operands.
    """
    parts = instruction.parts
    known = BUILDERS.get(parts[0])
    if known is not None:
        if form_of(instruction.opcode) is None:
            raise refusal(instruction)
        if parts[0] in ("st", "red") and parts[1] == "async":
            known = barriers.st_async
        step = known(instruction, builder)
        if "aligned" in parts and parts[0] not in ("bar", "barrier"):
            return _together(step, instruction.opcode.partition(".sync")[0])
        return step
    if (arithmetic := control.build(instruction, builder)) is None:
        raise refusal(instruction)
    return arithmetic


def _together(step: Step, what: str) -> Step:
    """Make a step wait until all lanes of the warp have reached it, as `.aligned` requires."""

    def run(w: Warp, place: int) -> int:
        return step(w, place) if w.together(what) else BLOCKED

    return run
