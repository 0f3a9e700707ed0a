"""The Xids of NVIDIA's driver: what each means, what NVIDIA says to do, and whether a program alone can cause it.

Source: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors), the table of common errors and the analysis of each;
the classes are those that the rules give to the same lines in a log.
"""

from __future__ import annotations

from dataclasses import dataclass

APP = "look for the error in the program (compute-sanitizer, cuda-gdb)"
RESTART = "restart the program"
RESET = "drain the node and reset the GPU"
LINKS = "drain the node, reset the GPUs, and look at links and fabric manager"
SUPPORT = "drain the node, run the vendor's field diagnostics, and have the GPU looked at"
UPDATE = "update the driver, and report it to NVIDIA with nvidia-bug-report.sh"
NOTHING = "none: it follows another error, or is put right already"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an Xid means.

    Attributes:
        text: In words.
        action: What NVIDIA says to do, in short.
        cls: The class of a failure that it causes; None where the program's own error decides.
        application: A program can bring it about by itself.
    """

    text: str
    action: str
    cls: str | None = "gpu_xid"
    application: bool = False


MEANINGS = {
    8: Meaning("the GPU stopped processing", RESET),
    13: Meaning("graphics engine exception, mostly the program's", APP, None, application=True),
    31: Meaning("memory page fault, mostly the program's", APP, None, application=True),
    32: Meaning("invalid or corrupted push buffer stream", RESET, None, application=True),
    38: Meaning("driver firmware error", UPDATE),
    43: Meaning("the GPU stopped processing, mostly the program's fault", APP, None, application=True),
    44: Meaning("graphics engine fault during a context switch", RESET),
    45: Meaning("preemptive cleanup after an earlier error", NOTHING, None, application=True),
    46: Meaning("the GPU stopped processing", RESET),
    48: Meaning("double bit ECC error", RESET, "gpu_ecc"),
    56: Meaning("display engine error", UPDATE),
    57: Meaning("error in programming the video memory interface", RESET),
    58: Meaning("unstable video memory interface detected", SUPPORT),
    61: Meaning("internal micro-controller breakpoint or warning", RESET),
    62: Meaning("internal micro-controller halt", RESET),
    63: Meaning("row remapping recorded", "reset the GPU when the node is free: the row is replaced then", "gpu_ecc"),
    64: Meaning("row remapping failed", SUPPORT, "gpu_ecc"),
    65: Meaning("video processor exception", RESET),
    66: Meaning("illegal access by the driver", UPDATE),
    67: Meaning("illegal access by the driver", UPDATE),
    68: Meaning("video processor exception", APP, None, application=True),
    69: Meaning("graphics engine class error", APP, None, application=True),
    73: Meaning("video encoder error", RESTART),
    74: Meaning("NVLink error", LINKS, "nvlink_error"),
    78: Meaning("vGPU start error", UPDATE),
    79: Meaning("the GPU has fallen off the bus", SUPPORT, "gpu_lost"),
    80: Meaning("corrupted data sent to the GPU", SUPPORT),
    81: Meaning("VGA subsystem error", UPDATE),
    92: Meaning("high single bit ECC error rate", "have the GPU looked at when the node is free", "gpu_ecc"),
    93: Meaning("error in the information ROM, not fatal", "note it: the GPU goes on"),
    94: Meaning("contained ECC error", "restart the program; reset the GPU when the node is free", "gpu_ecc"),
    95: Meaning("uncontained ECC error", RESET, "gpu_ecc"),
    109: Meaning("context switch time-out", RESET, None, application=True),
    110: Meaning("security fault", RESET),
    119: Meaning("GSP RPC time-out", RESET),
    120: Meaning("GSP error", RESET),
    121: Meaning("corrected error on the C2C link", NOTHING),
    122: Meaning("SPI error in the power management unit", UPDATE),
    123: Meaning("SPI error in the power management unit", UPDATE),
    140: Meaning("unrecovered ECC error", RESET, "gpu_ecc"),
    143: Meaning("error while the GPU was initialised", RESET),
    **dict.fromkeys((144, 145, 146, 147, 148, 149, 150), Meaning("NVLink error", LINKS, "nvlink_error")),
    154: Meaning("the GPU needs to be recovered", "what the driver's line asks for: reset, restart of the node, drain"),
}
OTHER = Meaning("an error that NVIDIA's table of common ones does not hold", SUPPORT)


def meaning(code: int) -> Meaning:
    """What an Xid means.

    Args:
        code: Its number.
    """
    return MEANINGS.get(code, OTHER)


@dataclass(frozen=True, slots=True)
class Xid:
    """An Xid that the driver told of.

    Attributes:
        code: Its number.
        gpu: The GPU's index.
        uuid: The GPU's UUID.
        pci: Its PCI address.
        at_us: When it was heard of, in microseconds since 1970.
    """

    code: int
    gpu: int
    uuid: str
    pci: str
    at_us: int

    def as_dict(self) -> dict[str, object]:
        """Plain values, as ``telemetry.jsonl`` holds them."""
        known = meaning(self.code)
        return {
            "code": self.code,
            "gpu": self.gpu,
            "uuid": self.uuid,
            "pci": self.pci,
            "meaning": known.text,
            "action": known.action,
            "class": known.cls,
            "application": known.application,
        }
