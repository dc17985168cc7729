"""What lanes of a warp tell each other, and how they part and join at branches."""

import numpy as np
import pytest
from small_kernels import run

from pallasc.emulator.machine.machine import Deadlock

LANES = np.arange(32, dtype=np.int64)


def shuffled(mode: str, by: str, clamp: int) -> tuple[list[int], list[bool]]:
    """Return the lane that each lane has a value of, and whether it is within its segment."""
    found = run(
        f"mov.u32 %r1, {by}; shfl.sync.{mode}.b32 %r2|%p1, %t, %r1, {clamp}, -1;"
        "selp.u32 %r3, 100, 0, %p1; add.u32 %r2, %r2, %r3; st.global.u32 [%out], %r2;"
    )
    return (found % 100).tolist(), (found >= 100).tolist()


@pytest.mark.parametrize("width", [32, 16, 8])
def test_shuffles_stay_within_their_segment(width: int) -> None:
    segment = (32 - width) << 8
    place = LANES % width
    lanes, inside = shuffled("down", "3", segment | 31)
    assert inside == (place + 3 < width).tolist()
    assert lanes == np.where(place + 3 < width, LANES + 3, LANES).tolist()
    lanes, inside = shuffled("up", "3", segment)
    assert inside == (place >= 3).tolist()
    assert lanes == np.where(place >= 3, LANES - 3, LANES).tolist()
    lanes, inside = shuffled("bfly", "5", segment | 31)
    assert inside == [True] * 32
    assert lanes == (LANES ^ 5).tolist()
    lanes, inside = shuffled("idx", "5", segment | 31)
    assert inside == [True] * 32
    assert lanes == (LANES - place + 5).tolist()


def test_a_clamp_below_the_end_of_the_segment() -> None:
    lanes, inside = shuffled("down", "4", 15)
    assert inside == (LANES + 4 <= 15).tolist()
    assert lanes == np.where(LANES + 4 <= 15, LANES + 4, LANES).tolist()


UPPER = """
  setp.lt.u32 %p1, %t, 8;
  @%p1 bra LESS;
  {upper}
  bra.uni END;
LESS:
  {lower}
END:
  st.global.u32 [%out], %r1;
"""


def test_lanes_that_have_parted_agree_among_those_that_a_mask_names() -> None:
    found = run(
        UPPER.format(
            upper="elect.sync %r1|%p2, 0xFFFFFF00; redux.sync.add.u32 %r2, %t, 0xFFFFFF00;"
            "mad.lo.u32 %r1, %r2, 100, %r1;",
            lower="shfl.sync.bfly.b32 %r1, %t, 1, 31, 0xFF; vote.sync.ballot.b32 %r2, %p1, 0xFF;"
            "mad.lo.u32 %r1, %r2, 100, %r1;",
        )
    )
    upper = 8 + 100 * sum(range(8, 32))
    assert found.tolist() == [25500 + (n ^ 1) for n in range(8)] + [upper] * 24


def test_a_mask_waits_for_the_lanes_that_it_names() -> None:
    lower = "shfl.sync.idx.b32 %r1, %t, 0, 31, -1;"
    with pytest.raises(Deadlock, match=r"the other lanes of its warp at shfl\.sync"):
        run(UPPER.format(upper="mov.u32 %r1, 1; bar.warp.sync -1;", lower=lower))


def test_lanes_go_round_a_loop_as_often_as_each_wants_and_join() -> None:
    found = run(
        "mov.u32 %r1, 0; mov.u32 %r2, %t;\nLOOP:\n setp.eq.u32 %p1, %r2, 0; @%p1 bra DONE;"
        "add.u32 %r1, %r1, %r2; sub.u32 %r2, %r2, 1; bra.uni LOOP;\nDONE:\n"
        "activemask.b32 %r3; setp.ne.u32 %p2, %r3, -1; @%p2 mov.u32 %r1, 9999;"
        "st.global.u32 [%out], %r1;"
    )
    assert found.tolist() == (LANES * (LANES + 1) // 2).tolist()


def test_lanes_that_have_ended_are_not_waited_for() -> None:
    found = run(
        "setp.ge.u32 %p1, %t, 20; @%p1 ret; redux.sync.add.u32 %r1, %t, -1; bar.sync 0;"
        "st.global.u32 [%out], %r1;",
        threads=64,
    )
    assert found.tolist() == [sum(range(20))] * 20 + [0] * 44
