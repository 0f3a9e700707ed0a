"""The bounded log, against a model that keeps everything."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpualert.rundir import assembly, index, logfile

WRITES = st.lists(st.tuples(st.sampled_from([index.STDOUT, index.STDERR]), st.binary(max_size=3000)), max_size=40)


def _pieces(log: bytes) -> list[tuple[bytes, int]]:
    """What is kept, piece by piece, each with how many bytes are said to be missing after it."""
    pieces: list[tuple[bytes, int]] = []
    rest = log
    while True:
        before, mark, after = rest.partition(b"\n[gpualert: ")
        if not mark:
            return [*pieces, (before, 0)]
        note, _, rest = after.partition(b"]\n")
        pieces.append((before, int(note.split()[0])))


@given(WRITES, st.integers(4096, 20_000))
@settings(max_examples=150, deadline=None)
def test_what_is_kept_is_head_and_tail_and_the_gap_is_counted(writes: list[tuple[int, bytes]], limit: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = logfile.OutputLog(directory, limit, lambda: directory)
        for stream, data in writes:
            log.write(stream, data)
        dropped = log.close()
        everything = b"".join(data for _, data in writes)
        content = Path(directory, "output.log").read_bytes()
        offset, missing = 0, 0
        for kept, gap in _pieces(content):
            assert everything[offset : offset + len(kept)] == kept
            offset += len(kept) + gap
            missing += gap
        assert (offset, missing, log.total) == (len(everything), dropped, len(everything))
        if len(everything) <= limit // 2:
            assert dropped == 0
        assert len(content) <= limit + 200
        records = list(index.records(Path(directory, "output.idx").read_bytes()))
        assert sum(length for _, _, length in records) == len(content)
        assert {path.name for path in Path(directory).iterdir()} == {"output.log", "output.idx"}


@given(WRITES)
@settings(max_examples=50, deadline=None)
def test_every_byte_of_an_unbounded_log_is_attributed_to_its_stream(writes: list[tuple[int, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = logfile.OutputLog(directory, 1 << 30, lambda: directory)
        for stream, data in writes:
            log.write(stream, data)
        log.close()
        content = Path(directory, "output.log").read_bytes()
        offset, by_stream = 0, {index.STDOUT: b"", index.STDERR: b""}
        for _, stream, length in index.records(Path(directory, "output.idx").read_bytes()):
            by_stream[stream] += content[offset : offset + length]
            offset += length
        for stream, data in by_stream.items():
            assert data == b"".join(piece for its, piece in writes if its == stream)


def test_putting_together_may_be_interrupted_and_repeated(tmp_path: Path) -> None:
    log = logfile.OutputLog(str(tmp_path), 8192, lambda: str(tmp_path))
    for number in range(3000):
        log.write(index.STDOUT, b"%07d\n" % number)
    log.flush_index()
    saved = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert assembly.assemble(str(tmp_path)) > 0
    once = (tmp_path / "output.log").read_bytes(), (tmp_path / "output.idx").stat().st_size
    for name, content in saved.items():
        if name.startswith("output.tail"):
            (tmp_path / name).write_bytes(content)  # as if the removal had been cut short
    (tmp_path / "output.log").write_bytes(once[0] + b"half of something")
    assembly.assemble(str(tmp_path))
    assert ((tmp_path / "output.log").read_bytes(), (tmp_path / "output.idx").stat().st_size) == once


def test_when_no_place_is_left_the_end_is_kept_in_memory_and_written_when_it_can_be(tmp_path: Path) -> None:
    def nowhere() -> str:
        raise OSError(28, "No space left on device")

    log = logfile.OutputLog(str(tmp_path), 1 << 20, nowhere)
    log.write(index.STDOUT, b"on disk\n")
    log._failed(OSError(28, "No space left on device"))
    for number in range(100_000):
        log.write(index.STDOUT, b"%07d\n" % number)
    assert "only the last 256 KiB" in log.trouble
    dropped = log.close()
    content = (tmp_path / "output.log").read_bytes()
    assert content.startswith(b"on disk\n")
    assert content.endswith(b"0099999\n")
    assert dropped == 8 * 100_000 + 8 - len(content) + len(b"\n[gpualert: ") + len(
        f"{dropped} bytes of output are not kept here (log.max_bytes)]\n"
    )
