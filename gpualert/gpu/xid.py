"""The Xids of NVIDIA's driver: what each means, what NVIDIA says to do, and whether a program alone can cause it.

Sources: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors): the catalogue for Ampere and newer GPUs, and for
older ones the table of common errors; gpud's copy of the catalogue. The classes are those that the rules give to the
same lines in a log.
"""

from __future__ import annotations

from dataclasses import dataclass

APP = "look for the error in the program (compute-sanitizer, cuda-gdb)"
RESTART = "restart the program; if it comes again, have the GPU looked at"
RESET = "drain the node and reset the GPU"
REBOOT = "drain the node and restart it; if it comes again, have the GPU looked at"
LINKS = "drain the node, reset the GPUs, and look at links and fabric manager"
SUPPORT = "drain the node, run the vendor's field diagnostics, and have the GPU looked at"
UPDATE = "update the driver, and report it to NVIDIA with nvidia-bug-report.sh"
NOTHING = "none: it follows another error, or is put right already"
NOTE = "note it: the GPU goes on; if it comes often, have the GPU looked at"


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


def _engine(text: str) -> Meaning:
    return Meaning(text, RESTART)


MEANINGS = {
    8: Meaning("the GPU stopped processing", RESTART),
    11: Meaning("invalid or corrupted push buffer stream", APP),
    13: Meaning("graphics engine exception, mostly the program's", APP, None, application=True),
    25: Meaning("invalid or illegal push buffer stream", APP),
    31: Meaning("memory page fault, mostly the program's", APP, None, application=True),
    32: Meaning("invalid or corrupted push buffer stream", APP, None, application=True),
    37: Meaning("driver firmware error", APP),
    38: Meaning("driver firmware error", UPDATE),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _engine("copy engine exception")),
    43: Meaning("the GPU stopped processing, mostly the program's fault", APP, None, application=True),
    44: Meaning("graphics engine fault during a context switch", RESET),
    45: Meaning("preemptive cleanup after an earlier error", NOTHING, None, application=True),
    46: Meaning("the GPU stopped processing", RESET),
    48: Meaning("double bit ECC error", RESET, "gpu_ecc"),
    54: Meaning("the GPU board's extra power cable is not connected", "connect it, and have the board looked at"),
    56: Meaning("display engine error", UPDATE),
    57: Meaning("error in programming the video memory interface", RESET),
    58: Meaning("unstable video memory interface detected", SUPPORT),
    60: _engine("video processor exception"),
    61: Meaning("internal micro-controller breakpoint or warning", RESET),
    62: Meaning("internal micro-controller halt", RESET),
    63: Meaning("row remapping recorded", "reset the GPU when the node is free: the row is replaced then", "gpu_ecc"),
    64: Meaning("row remapping failed", SUPPORT, "gpu_ecc"),
    65: Meaning("video processor exception", RESET),
    66: Meaning("illegal access by the driver", UPDATE),
    67: Meaning("illegal access by the driver", UPDATE),
    68: Meaning("video processor exception", APP, None, application=True),
    69: Meaning("graphics engine class error", APP, None, application=True),
    **dict.fromkeys((73, 142), _engine("video encoder error")),
    74: Meaning("NVLink error", LINKS, "nvlink_error"),
    78: Meaning("vGPU start error", UPDATE),
    79: Meaning("the GPU has fallen off the bus", REBOOT, "gpu_lost"),
    80: Meaning("corrupted data sent to the GPU", RESTART),
    81: Meaning("VGA subsystem error", UPDATE),
    **dict.fromkeys((82, *range(99, 106)), _engine("JPEG decoder error")),
    **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), _engine("video decoder error")),
    **dict.fromkeys((86, 139), _engine("optical flow accelerator error")),
    92: Meaning("high single bit ECC error rate", "have the GPU looked at when the node is free", "gpu_ecc"),
    93: Meaning("error in the information ROM, not fatal", NOTE),
    94: Meaning("contained ECC error", "restart the program; reset the GPU when the node is free", "gpu_ecc"),
    95: Meaning("uncontained ECC error", RESET, "gpu_ecc"),
    109: Meaning("context switch time-out", RESET, None, application=True),
    110: Meaning("security fault", RESET),
    119: Meaning("GSP RPC time-out", RESET),
    120: Meaning("GSP error", RESET),
    121: Meaning("corrected error on the C2C link", NOTHING),
    122: Meaning("SPI error in the power management unit", UPDATE),
    123: Meaning("SPI error in the power management unit", UPDATE),
    136: Meaning("an NVLink could not be trained", LINKS),
    137: Meaning("an access to a peer GPU's memory was refused", APP),
    140: Meaning("unrecovered ECC error", RESET, "gpu_ecc"),
    141: Meaning("error on CUDA's fast path", NOTE),
    143: Meaning("error while the GPU was initialised", RESET),
    **dict.fromkeys(range(144, 151), Meaning("NVLink error", LINKS, "nvlink_error")),
    151: Meaning("the keys of confidential computing could not be changed", "restart the virtual machine"),
    152: Meaning("memory error of the deep learning accelerator", NOTE),
    153: Meaning("time-out of the deep learning accelerator", NOTE),
    154: Meaning("the GPU needs to be recovered", "what the driver's line asks for: reset, restart of the node, drain"),
    155: Meaning("NVLink error that software defined", LINKS),
    156: Meaning("part of the GPU is to be retired", RESET),
    157: Meaning("part of the GPU could not be retired", SUPPORT),
    158: Meaning("fatal time-out of the GPU", RESET),
    159: Meaning("error on the coherent link to the processor", RESTART),
    160: Meaning("a memory channel was retired", NOTE),
    161: Meaning("a memory channel could not be retired", UPDATE),
    166: Meaning("encrypted NVLink traffic before the link was ready for it", LINKS),
    167: Meaning("fatal time-out on PCIe", SUPPORT),
    168: Meaning("errors in the memory that is kept for the driver", SUPPORT),
    169: Meaning("internal micro-controller halt", RESET),
    170: Meaning("NVLink interrupt in confidential computing", LINKS),
    171: Meaning("uncorrectable error in the GPU's DRAM", RESET),
    172: Meaning("uncorrectable error in the GPU's SRAM", RESET),
}
OTHER = Meaning("an error that NVIDIA's catalogue does not hold", SUPPORT)
NOTICES = frozenset({14, 106, 107, 162, 163, 164, 165})
"""No errors: tests of the reporting itself, and what the circuit that smooths power draw tells of its own state."""


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
