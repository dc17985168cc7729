"""The architectures that a kind of kernel is compiled for; at the front the one to check first."""

EVERYWHERE = (
    "sm_90a",
    "sm_80",
    "sm_86",
    "sm_89",
    "sm_100a",
    "sm_103a",
    "sm_110a",
    "sm_120a",
    "sm_121a",
)
"""For kernels of what every generation has: all that pallasc compiles for."""

BEFORE_HOPPER = ("sm_80", "sm_86", "sm_89")
"""For copies without TMA, and for what a gap of these says."""

SINCE_HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a")
"""For clusters, barriers in shared memory, multicast memory, and copies by TMA."""

HOPPER = ("sm_90a",)
"""For `wgmma`, which no other generation has."""

SINCE_BLACKWELL = ("sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a")
"""For blocks that take over the work of others."""

TENSOR_MEMORY = ("sm_100a", "sm_103a", "sm_110a")
"""For `tcgen05`, which Blackwell has, except for the cards of workstations."""
