"""A file system that stops answering, as a dead file server does: one file, of which the beginning can be read.

python stallfs.py DIRECTORY [BYTES]

Speaks the kernel's FUSE protocol (include/uapi/linux/fuse.h) on /dev/fuse; needs root to mount. It says ``mounted`` and
serves until it is killed: then whatever waits for it gets an error.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys

NAME = b"shard-17.tar"
SIZE = 1 << 30
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _INIT, _INTERRUPT, _BATCH_FORGET = 1, 2, 3, 14, 15, 26, 36, 42
_RELEASE, _FLUSH, _ACCESS = 18, 25, 34
_ENOENT, _ENOSYS = 2, 38
_HEADER = struct.Struct("<IIQQIIIHH")
_FILE_INODE = 2


def _attributes(node: int) -> bytes:
    mode = stat.S_IFREG | 0o444 if node == _FILE_INODE else stat.S_IFDIR | 0o555
    size = SIZE if node == _FILE_INODE else 0
    return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _answer(opcode: int, node: int, body: bytes) -> bytes | int:
    """What is sent back: bytes, or the number of an error."""
    if opcode == _INIT:
        return struct.pack("<IIIIHHIIHHI7I", 7, 31, 1 << 16, 0, 8, 6, 1 << 16, 1, 16, 0, 0, *[0] * 7)
    if opcode == _LOOKUP:
        if body.rstrip(b"\0") != NAME:
            return _ENOENT
        return struct.pack("<QQQQII", _FILE_INODE, 1, 3600, 3600, 0, 0) + _attributes(_FILE_INODE)
    if opcode == _GETATTR:
        return struct.pack("<QII", 3600, 0, 0) + _attributes(node)
    if opcode == _OPEN:
        return struct.pack("<QII", 1, 0, 0)
    return b"" if opcode in (_RELEASE, _FLUSH, _ACCESS) else _ENOSYS


def serve(directory: str, readable: int) -> None:
    """Mount and serve until killed.

    Args:
        directory: Where.
        readable: How many bytes of the file can be read before nothing more comes.
    """
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    library = ctypes.CDLL(None, use_errno=True)
    nosuid_nodev = 2 | 4
    if library.mount(b"stallfs", os.fsencode(directory), b"fuse", nosuid_nodev, options):
        raise OSError(ctypes.get_errno(), f"cannot mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    while True:
        request = os.read(device, 1 << 18)
        _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
        body = request[_HEADER.size :]
        if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            continue  # none of them is answered
        if opcode == _READ:
            offset, size = struct.unpack_from("<QI", body, 8)
            if offset + size > readable:
                continue  # and this is the stall
            answer: bytes | int = b"x" * size
        else:
            answer = _answer(opcode, node, body)
        error, data = (0, answer) if isinstance(answer, bytes) else (-answer, b"")
        os.write(device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 256 << 10)
