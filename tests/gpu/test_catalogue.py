"""What becomes of an Xid by what NVIDIA's catalogue says of it, and of a binding that is older than the catalogue."""

from __future__ import annotations

import pytest
from gpu.asking import Asking
from gpu.standin import Script

from gpualert.gpu import xid

LAST_DOCUMENTED = 172
"""Of NVIDIA's catalogue as of October 2025."""
UNUSED = frozenset(
    {*range(1, 8), 9, 10, 12, *range(15, 25), *range(26, 31), *range(33, 37), 42, 47, *range(49, 54), 55, 59, 87, 90, 91,
     108, *range(111, 119), 124, 125, 138}
)  # fmt: skip
"""Numbers that the catalogue has as unused, for any GPU."""


def test_every_number_of_the_catalogue_is_known_or_no_error() -> None:
    assert {*range(1, LAST_DOCUMENTED + 1)} - UNUSED == {*xid.MEANINGS, *xid.NOTICES}
    assert not xid.NOTICES & set(xid.MEANINGS)


@pytest.mark.parametrize(
    ("codes", "action"),
    [
        ({11, 13, 25, 31, 32, 69, 137}, xid.APP),
        ({8, 39, 60, 82, 86, 88, 135, 139}, xid.RESTART),
        ({46, 62, 95, 109, 110, 119, 120, 140, 143, 158}, xid.RESET),
        ({79}, xid.REBOOT),
        ({74, 144, 145, 146, 147, 148, 149, 150}, xid.LINKS),
    ],
)
def test_what_to_do_is_what_nvidia_says(codes: set[int], action: str) -> None:
    assert {code: xid.meaning(code).action for code in codes} == dict.fromkeys(codes, action)


def test_a_program_can_bring_about_what_nvidia_wants_looked_for_in_it() -> None:
    assert {code for code, one in xid.MEANINGS.items() if one.action == xid.APP} == {
        code for code, one in xid.MEANINGS.items() if one.application
    } - {45, 109}  # the one follows other errors; of the other both may be the cause


@pytest.fixture
def opened(asking: Asking) -> Asking:
    asking("devices = open_devices({})")
    return asking


def test_what_is_no_error_is_not_told(opened: Asking, script: Script) -> None:
    for code in (106, 79, 163):
        script.event(3, code)
    assert [told["code"] for told in opened("devices.wait(1)")] == [79]


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", {"energy_j"}),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", {"throttle"}),
        ("nvmlDeviceGetRemappedRows", {"remapped_rows", "remap_pending", "remap_failed"}),
    ],
)
def test_a_binding_that_lacks_a_call_costs_its_fields_alone(opened: Asking, call: str, fields: set[str]) -> None:
    full = set(opened("devices.sample()[3]"))
    opened(f"delattr(devices._nvml, '{call}')")
    assert set(opened("devices.sample(whole=True)[3]")) == full - fields
