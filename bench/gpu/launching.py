"""What several parts need of the driver."""

from __future__ import annotations


def wait() -> None:
    """Wait until the GPU has nothing to do.

    Raises:
        DriverError: what ran before has failed.
    """
    from pallasc.runtime.device.devices import active, current_device, get_device

    with active(get_device(current_device())) as driver:
        driver.call("cuCtxSynchronize", what="the GPU does not come to rest")
