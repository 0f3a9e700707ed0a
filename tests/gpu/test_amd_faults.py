"""AMD's GPUs whose binding is another release's, or whose driver fails now and then.

Against a stand-in of the binding's functions, as in ``test_amd.py``: no driver of AMD's has been asked.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpualert.gpu import amd

NOT_SUPPORTED, BUSY = 2, 30  # AMDSMI_STATUS_NOT_SUPPORTED, AMDSMI_STATUS_BUSY
SERIALS = ["0x00000000DEADBE01", "0x00000000DEADBE02"]
UUIDS = ["aaff74a1-0000-1000-80cf-a1a1a1a1a1a1", "bbff74a1-0000-1000-80cf-b2b2b2b2b2b2"]


class Library:
    """What the binding asks: answers by call, and how often each was made; an exception is raised."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.answers: dict[str, Any] = {
            "init": None,
            "shut_down": None,
            "get_processor_handles": [0, 1],
            "get_gpu_device_uuid": UUIDS.__getitem__,
            "get_gpu_asic_info": lambda handle: {"market_name": "MI300X", "asic_serial": SERIALS[handle]},
            "get_gpu_activity": {"gfx_activity": 88},
        }

    def binding(self) -> SimpleNamespace:
        """The binding, with the calls that there are answers to."""
        calls = {f"amdsmi_{name}": self._call(name) for name in self.answers}
        kinds = SimpleNamespace(EDGE=0, JUNCTION=1)
        return SimpleNamespace(
            **calls,
            AmdSmiTemperatureType=kinds,
            AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
            AmdSmiMemoryType=SimpleNamespace(VRAM=0),
        )

    def _call(self, name: str) -> Any:
        def made(*arguments: Any) -> Any:
            self.made.append(name)
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return made


@pytest.fixture
def library() -> Library:
    return Library()


def _open(monkeypatch: pytest.MonkeyPatch, library: Library, **environment: str) -> amd.Amd | None:
    monkeypatch.setitem(sys.modules, "amdsmi", library.binding())
    return amd.open_devices(environment, "/proc")


def _opened(monkeypatch: pytest.MonkeyPatch, library: Library, **environment: str) -> amd.Amd:
    found = _open(monkeypatch, library, **environment)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("GPU-00000000deadbe02", [1]),
        ("GPU-00000000DEADBE02", [1]),
        ("1,GPU-00000000deadbe01", [0, 1]),
        ("GPU-00000000deadbe", None),  # both of them
        ("GPU-00000000deadbe03", None),
    ],
)
def test_rocm_names_a_gpu_by_its_serial_number(
    monkeypatch: pytest.MonkeyPatch, library: Library, visible: str, gpus: list[int] | None
) -> None:
    found = _open(monkeypatch, library, ROCR_VISIBLE_DEVICES=visible)
    assert (list(found.handles) if found else None) == gpus


def test_a_gpu_has_the_name_that_the_binding_says_rocm_gives_it(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    library.answers["get_gpu_enumeration_info"] = lambda handle: {"hip_uuid": f"GPU-{'ab'[handle]}1"}
    library.answers["get_gpu_asic_info"] = {"asic_serial": "N/A"}
    assert list(_opened(monkeypatch, library, ROCR_VISIBLE_DEVICES="GPU-b1").handles) == [1]


def test_a_call_that_fails_now_and_then_is_made_again(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    found = _opened(monkeypatch, library)
    for _ in range(2 * amd.FAILURES_MAX):
        library.answers["get_gpu_activity"] = OSError(BUSY)
        assert "utilization" not in found.sample()[0]
        library.answers["get_gpu_activity"] = {"gfx_activity": 88}
        assert found.sample()[0]["utilization"] == 88


def test_a_call_that_always_fails_is_given_up(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    found = _opened(monkeypatch, library)
    library.answers["get_gpu_activity"] = OSError(BUSY)
    for _ in range(3 * amd.FAILURES_MAX):
        found.sample()
    assert library.made.count("get_gpu_activity") == 2 * amd.FAILURES_MAX  # of each GPU


def test_a_call_that_is_not_supported_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    found = _opened(monkeypatch, library)
    library.answers["get_gpu_activity"] = OSError(NOT_SUPPORTED)
    found.sample()
    found.sample()
    assert library.made.count("get_gpu_activity") == 2


def test_calls_that_a_binding_lacks_cost_their_fields_alone(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    found = _opened(monkeypatch, library)
    assert found.sample()[1] == {"index": 1, "uuid": UUIDS[1], "utilization": 88}
    assert found.inventory()[1] == {"index": 1, "uuid": UUIDS[1], "name": "MI300X"}
    assert found.driver() == {}
    found.close()
    assert library.made[-1] == "shut_down"


def test_an_older_bindings_energy_counter_has_another_name(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    library.answers["get_energy_count"] = {"power": 4_000_000, "counter_resolution": 0.5, "timestamp": 1}
    assert _opened(monkeypatch, library).sample()[0]["energy_j"] == 2.0


@pytest.mark.parametrize("unknown", [0xFFFF, 0xFFFFFFFF, "N/A", None, True, -1])
def test_a_number_that_the_library_does_not_have_is_left_out(
    monkeypatch: pytest.MonkeyPatch, library: Library, unknown: object
) -> None:
    library.answers["get_gpu_activity"] = {"gfx_activity": unknown}
    library.answers["get_power_info"] = {"current_socket_power": unknown, "average_socket_power": 402}
    sample = _opened(monkeypatch, library).sample()[0]
    assert "utilization" not in sample
    assert sample["power_w"] == 402


def test_what_slows_the_clocks_is_named(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    told = {"active_ppt_pwr": True, "active_hbm_thrm": True, "active_vr_thrm": False, "active_prochot_thrm": "N/A"}
    library.answers["get_violation_status"] = told
    assert _opened(monkeypatch, library).sample()[0]["throttle"] == ["power_cap", "memory_thermal"]


def test_what_slows_the_clocks_is_asked_seldom(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    monkeypatch.setattr(amd, "SELDOM_S", float("inf"))
    library.answers["get_violation_status"] = {"active_ppt_pwr": True}
    found = _opened(monkeypatch, library)
    found._asked_at = 0.0
    found.sample()
    found.sample()
    assert library.made.count("get_violation_status") == 0


def test_a_binding_without_its_library_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "amdsmi.py").write_text("print('no library')\nraise KeyError('libamd_smi.so')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    assert amd.open_devices({}, "/proc") is None
    assert capfd.readouterr() == ("", "")
