"""What Xids mean: the table says what the rules say of the same Xid in a log."""

from __future__ import annotations

import pytest

from gpualert.diagnosis import Rulebook
from gpualert.gpu import xid

RULES = Rulebook.load()
KNOWN = {code: text for rule in RULES.rules for code, text in (rule.lookup or {}).get("xid", {}).items()}
"""What the rules call each Xid."""


def _class_in_log(code: int) -> str:
    """The class of the rule that an Xid's line in a log fits best."""
    matched = RULES.matches(f"NVRM: Xid (PCI:0000:3b:00): {code}, ")
    best = max(matched, key=lambda rule: rule.level, default=None)
    return best.cls if best is not None else "gpu_xid"


@pytest.mark.parametrize("code", sorted({*xid.MEANINGS, *range(1, 200)}))
def test_an_xid_has_the_class_that_its_line_in_a_log_has(code: int) -> None:
    assert _class_in_log(code) == (xid.meaning(code).cls or "gpu_xid")


@pytest.mark.parametrize(("code", "text"), KNOWN.items())
def test_an_xid_is_called_what_the_rules_call_it(code: str, text: str) -> None:
    assert xid.meaning(int(code)).text == text


def test_the_programs_own_xids_are_no_hardware() -> None:
    for code, one in xid.MEANINGS.items():
        if one.cls is None:
            assert one.application, code
        if one.cls not in (None, "gpu_xid"):
            assert not one.application, code


@pytest.mark.parametrize("code", sorted(xid.MEANINGS))
def test_every_xid_has_a_meaning_and_something_to_do(code: int) -> None:
    known = xid.meaning(code)
    assert known.text
    assert known.action
    assert not known.text.endswith(".")


def test_an_xid_that_nobody_knows_is_broken_hardware() -> None:
    assert xid.meaning(4711) is xid.OTHER
    assert (xid.OTHER.cls, xid.OTHER.application) == ("gpu_xid", False)


def test_an_xid_is_written_down_with_its_meaning() -> None:
    assert xid.Xid(48, 3, "GPU-1", "00000000:48:00.0", 5).as_dict() == {
        "code": 48,
        "gpu": 3,
        "uuid": "GPU-1",
        "pci": "00000000:48:00.0",
        "meaning": "double bit ECC error",
        "action": xid.RESET,
        "class": "gpu_ecc",
        "application": False,
    }
