"""Plans made by hand with everything that there is, by name."""

from collections.abc import Callable

import made
from msgspec.structs import replace

from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Bytes, Copy, Fill, Im2col, Pointer, TensorMap

PAIR = made.maps(made.tensor_map(0), made.tensor_map(1, offset=64), size=512)
WINDOW = TensorMap(
    buffer=0, offset=0, dtype="float16", dims=(64, 8, 4, 2), strides=(128, 1024, 4096), box=(),
    element_strides=(1, 1, 2, 1), swizzle=128, l2_promotion=256, nan_fill=True,
    im2col=Im2col(lower=[-1, -2], upper=[1, 2], channels_per_pixel=64, pixels_per_column=32),
)  # fmt: skip


def matrices() -> dict[str, str]:
    return {"a": "f16[64, 64]", "b": "f16[64, 64]"}


PLANS: dict[str, Callable[[], Artifact]] = {
    "pointers": made.add,
    "offsets": lambda: made.artifact(made.launch("two", Pointer(0, 64), Pointer(2, 1024))),
    "no parameters, no arrays": lambda: made.artifact(
        made.launch("none"), inputs={}, outputs=(), input_tree=[], output_tree=None
    ),
    "a value": lambda: made.artifact(made.launch("valued", Bytes(4, "01020304", ()), 2)),
    "maps": lambda: made.artifact(
        made.launch("mapped", 2, PAIR), inputs=matrices(), outputs=("f16[64, 64]",)
    ),
    "maps over bytes": lambda: made.artifact(
        made.launch("mapped", 2, replace(PAIR, data=bytes(range(256)).hex() * 2)),
        inputs=matrices(),
    ),
    "an im2col map": lambda: made.artifact(
        made.launch("mapped", 1, made.maps(WINDOW, size=512)), inputs={"a": "f16[64, 64]"}
    ),
    "a map at an odd place": lambda: made.artifact(
        made.launch("shifted", made.maps(made.tensor_map(0), size=192, first=64), 1),
        inputs={"a": "f16[64, 64]"},
    ),
    "a map over a temporary and a map over a constant": lambda: made.artifact(
        made.launch("mapped", 2, made.maps(made.tensor_map(3), made.tensor_map(4), size=512)),
        temporaries=(4096,),
        constants=(bytes(4096),),
    ),
    "temporaries": lambda: made.artifact(
        made.launch("two", 0, 3), made.launch("three", 3, 4, 2), temporaries=(100, 5000)
    ),
    "constants": lambda: made.artifact(
        made.launch("three", 0, 3, 2), made.launch("two", 4, 2), constants=(b"x" * 1024, b"y" * 8)
    ),
    "a constant twice": lambda: made.artifact(
        made.launch("three", 0, 3, 4), constants=(b"x" * 64, b"x" * 64)
    ),
    "fills and copies": lambda: made.artifact(
        Fill(2, 0, 512, 7, 1),
        Fill(2, 512, 512, 0xDEADBEEF, 4),
        Fill(2, 0, 0),
        made.launch("two", 0, 2),
        Copy(0, 0, 2, 256, 128),
        Copy(1, 0, 1, 0, 0),
    ),
    "only a copy": lambda: made.artifact(Copy(0, 0, 2, 0, 1024)),
    "in place": lambda: made.artifact(made.launch("two", 0, 1), outputs=("a",)),
    "outputs twice": lambda: made.artifact(
        made.launch("three", 0, 1, 2), outputs=("b", "f32[4, 64]", "b")
    ),
    "pdl": lambda: made.artifact(made.launch("two", 0, 2), made.launch("two", 1, 2, pdl=True)),
    "clusters": lambda: made.artifact(
        made.launch("one", 2, grid=(16, 2, 1), cluster=(16, 1, 1)),
        made.launch("one", 2, grid=(4, 4, 2), cluster=(2, 2, 1), pdl=True),
    ),
    "shared memory": lambda: made.artifact(
        made.launch("one", 2, dynamic_smem_bytes=100_000),
        made.launch("one", 2, dynamic_smem_bytes=200_000),
        made.launch("one", 2, dynamic_smem_bytes=1000),
    ),
    "many steps": lambda: made.artifact(
        *(made.launch("mapped", n % 3, PAIR) for n in range(20)), inputs=matrices()
    ),
    "arrays without elements": lambda: made.artifact(
        made.launch("three", 0, 1, 2), inputs={"a": "f32[0, 64]", "b": "f32[4, 64]"}
    ),
}
