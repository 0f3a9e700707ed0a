"""A failure's fingerprint: the same for the same failure, whatever numbers, times and ids its line holds this time."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert.attempts import fingerprint

ALIKE = [
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 3 has a total capacity of 79.15 GiB",
    ),
    ("[rank3]: ValueError: bad sample 17", "[rank11]: ValueError: bad sample 902345"),
    ("2026-12-01 05:12:00,123 ERROR worker died", "2026-12-02 15:01:53,004 ERROR worker died"),
    ("2026-12-01T05:12:00Z E disk", "2026-12-01T05:12:00.123456+02:00 E disk"),
    ("Tue Dec  1 05:12:00 2026 node-x down", "Wed Nov 30 15:01:07 2026 node-x down"),
    ("Dec  1 05:12:00 gpu-17 kernel: NVRM: Xid", "Nov 30 05:12:00 gpu-3 kernel: NVRM: Xid"),
    ("segfault at 0x7f3a12bc ip 0xdeadbeef", "segfault at 0x10 ip 0xffffffffa1"),
    ("run 3f2504e0-4f89-11d3-9a0c-0305e82c3301 lost", "run 6fa459ea-ee8a-4ca4-94db-77e160355eee lost"),
    ("no file /tmp/tmpab3_x9qz/shard-0", "no file /tmp/pymp-u8f2k/shard-12"),
    ("cannot write /dev/shm/torch_1234_99_1", "cannot write /dev/shm/nccl-Xy7ab2"),
    ("commit 9f86d081884c7d65 is broken", "commit 2c26b46b68ffc68f is broken"),
    ("connect to 10.0.0.3:29500 refused", "connect to 192.168.17.250:31999 refused"),
    ("listen on [fe80:1:2:3::4]:80", "listen on [fe80:a:b:c::d]:443"),
    ("pod llama-x7k2p has gone", "pod llama-9fbzt has gone"),
    ("timed out after 600000 ms", "timed out after 12.5 s"),
    ("ranks 0, 3, 5 are missing", "ranks 1, 2 are missing"),
    ("shapes [32, 512, 768] and [16, 512]", "shapes [8, 4] and [16, 512, 3, 3]"),
    ("run k3v9qd failed", "run p0w8x2a failed"),
    ("loss 1.5e-07 at step 1_000", "loss -3 at step 7"),
    ("a\tb \x1b  c", "a b c"),
]
DIFFERENT = [
    ("KeyError: 'labels'", "KeyError: 'tokens'"),
    ("no file /data/train.bin", "no file /data/valid.bin"),
    ("expected float16, found half", "expected bool, found half"),
    ("RuntimeError: bad sample", "ValueError: bad sample"),
    ("module conv", "module norm"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_what_differs_from_one_time_to_the_next_does_not_count(one: str, other: str) -> None:
    assert fingerprint.normalised(one) == fingerprint.normalised(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_words_count(one: str, other: str) -> None:
    assert fingerprint.normalised(one) != fingerprint.normalised(other)


def test_class_line_and_job_make_the_fingerprint() -> None:
    first = fingerprint.of("cuda_oom", "out of memory: 2.00 GiB", ("name", "llama-7b"))
    assert re.fullmatch(r"[0-9a-f]{16}", first)
    assert fingerprint.of("cuda_oom", "out of memory: 3.00 MiB", ("name", "llama-7b")) == first
    others = [
        fingerprint.of("ram_oom", "out of memory: 2.00 GiB", ("name", "llama-7b")),
        fingerprint.of("cuda_oom", "no memory", ("name", "llama-7b")),
        fingerprint.of("cuda_oom", "out of memory: 2.00 GiB", ("name", "other")),
    ]
    assert len({first, *others}) == 4


def test_numbers_of_a_command_are_kept_and_its_ids_are_not() -> None:
    assert fingerprint.without_ids("--lr=0.1 --batch 32") == "--lr=0.1 --batch 32"
    assert fingerprint.without_ids("--out=/tmp/x7/y") == fingerprint.without_ids("--out=/tmp/q9/y") != "--out=/tmp/x7/y"


def test_a_line_without_end_takes_no_more_than_its_beginning() -> None:
    assert fingerprint.normalised("a1" * 50_000_000) == fingerprint.normalised("a1" * 1024)


@given(st.text())
def test_any_text_comes_to_a_short_line_without_digits(text: str) -> None:
    found = fingerprint.normalised(text)
    assert len(found) <= fingerprint.KEPT_MAX
    assert found.isprintable()
    assert not re.search(r"\d", found)
    assert re.fullmatch(r"[0-9a-f]{16}", fingerprint.of(text, text, (text,)))


WORDS = st.text(alphabet="ghijklopqruvwxyz:' ()", min_size=1, max_size=40)
NUMBERS = st.integers(min_value=0, max_value=10**9)


@given(WORDS, WORDS, NUMBERS, NUMBERS)
def test_a_number_between_words_may_be_any(before: str, after: str, one: int, other: int) -> None:
    lines = [fingerprint.normalised(f"{before} = {number} ; {after}") for number in (one, other)]
    assert lines[0] == lines[1]


@given(WORDS, st.text(alphabet=string.ascii_lowercase, min_size=9, max_size=20), st.sampled_from([" ", ": ", " - "]))
def test_a_word_without_digits_stays(before: str, word: str, between: str) -> None:
    assert word in fingerprint.normalised(f"{before}{between}{word}")
