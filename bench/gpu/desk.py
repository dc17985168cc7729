"""What the code of a unit uses: the packed folder, the options, and functions to write results."""

import importlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carried import Carried, read_variants
from results import Results


class MissingError(Exception):
    """A measurement is impossible on this machine; the text names the missing part."""


@dataclass
class Desk:
    """Input and output of a unit, the work of one process (`schedule.py`).

    Attributes:
        folder: the packed folder.
        unit: the unit's id.
        results: the file for the unit's results.
        options: options of the command, see `check_gpu.py`.
    """

    folder: Path
    unit: str
    results: Results
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The unit's name within its part."""
        return self.unit.partition("/")[2]

    def variant(self) -> Carried:
        """Return the variant that the unit is named after."""
        return next(one for one in read_variants(self.folder) if one.id == self.name)

    def tell(self, what: str, **values: Any) -> None:
        """Write a result."""
        self.results.write("thing", unit=self.unit, what=what, **values)

    def ask(self, what: str, work: Callable[[], Mapping[str, Any]]) -> None:
        """Do some work, and write its result, or why there is none.

        Raises:
            DriverError: the work failed, and the process cannot use the GPU any more.
        """
        try:
            self.tell(what, **work())
        except MissingError as error:
            self.tell(what, missing=str(error))
        except Exception as error:  # noqa: BLE001 - it belongs in the results
            self.tell(what, error=describe(error))
            wait()


def describe(error: BaseException) -> dict[str, Any]:
    """Return an error with its traceback, for a line of results."""
    found: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    for name in ("code", "hint"):
        if getattr(error, name, None) is not None:
            found[name] = getattr(error, name)
    found["traceback"] = "".join(traceback.format_exception(error))[-6000:]
    return found


def need(name: str) -> Any:
    """Import a package that may be missing here.

    Raises:
        MissingError: the package cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise MissingError(f"{name}: {type(error).__name__}: {error}") from error


def need_torch() -> Any:
    """Import torch with a GPU.

    Raises:
        MissingError: torch is missing, or finds no GPU.
    """
    torch = need("torch")
    if not torch.cuda.is_available():
        raise MissingError("torch finds no GPU")
    return torch


def need_jax() -> Any:
    """Import JAX with a GPU.

    Raises:
        MissingError: JAX is missing, or finds no GPU.
    """
    jax = need("jax")
    try:
        platform = jax.default_backend()
    except Exception as error:
        raise MissingError(f"JAX: {type(error).__name__}: {error}") from error
    if platform != "gpu":
        raise MissingError(f"JAX runs on {platform} here")
    return jax


def wait() -> None:
    """Wait until the GPU is idle.

    Raises:
        DriverError: earlier work has failed.
    """
    from pallasc.runtime.device.devices import active, current_device, get_device

    with active(get_device(current_device())) as driver:
        driver.call("cuCtxSynchronize", what="the GPU does not become idle")
