"""The job's GPUs, whoever made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpualert.gpu.xid import Xid

Gpu = dict[str, object]


class Devices(Protocol):
    """GPUs that one driver serves. What it does not tell is missing; nothing is raised for what it does.

    Attributes:
        vendor: ``nvidia`` or ``amd``.
    """

    vendor: str

    def driver(self) -> dict[str, object]:
        """Versions: ``driver``, and ``cuda`` and ``nvml``, or ``rocm``."""

    def inventory(self) -> list[Gpu]:
        """Each GPU as it is: ``index``, ``uuid``, ``name``, ``pci``, ``memory_total`` (bytes), ``power_limit_w``.

        Also ``ecc_mode`` and ``mig``, where it has such.
        """

    def sample(self, *, whole: bool = False) -> list[Gpu]:
        """Each GPU as it stands, by ``index`` and ``uuid``.

        ``utilization`` (percent), ``memory_used`` and ``memory_total`` (bytes), ``power_w``, ``temperature_c``,
        ``energy_j`` (since the driver was loaded), ``throttle`` (what slows its clocks), ``ecc_corrected``,
        ``ecc_uncorrected``, ``remapped_rows``, ``nvlink_errors``, ``processes``; ``lost`` where it answers no more.

        Args:
            whole: Ask now also what is else asked once a minute.
        """

    def wait(self, timeout_s: float) -> list[Xid]:
        """The Xids since the last call; waits for one.

        Args:
            timeout_s: How long at most, in seconds.
        """

    def close(self) -> None:
        """Let the driver go."""


def open_devices(environment: Mapping[str, str]) -> Devices | None:
    """The job's GPUs; None where there are none, or their driver cannot be asked.

    Args:
        environment: The job's variables.
    """
    from gpualert.gpu import amd, nvml  # noqa: PLC0415  (the collector's thread alone wants them)

    return nvml.open_devices(environment) or amd.open_devices(environment)
