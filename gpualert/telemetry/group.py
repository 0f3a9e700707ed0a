"""Whether a control group that the kernel's log names is the job's."""

from __future__ import annotations

import re

from gpualert.supervisor import files
from gpualert.supervisor.cgroup import memberships

_POD = re.compile(r"/pods/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/")
_CONTAINER = re.compile(r"/(?:overlay-)?containers/([0-9a-f]{64})/")
_GIVEN_BY_RUNTIME = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log")
"""What a runtime mounts into a container; where it comes from tells which container that is. On the node itself these
are no mounts, though all the pods' other mounts are seen there."""


class Names:
    """By what a control group in the kernel's log is known to be the job's.

    Attributes:
        path: The group's path as we see it; empty where we see only ourselves (a cgroup namespace).
        marks: Ids of our pod or container, parts of the group's name.
    """

    __slots__ = ("marks", "path")

    def __init__(self, path: str = "", marks: tuple[str, ...] = ()) -> None:
        self.path = path
        self.marks = marks

    @classmethod
    def of_this_process(cls, root: str = "") -> Names:
        """Those of this process, which is in the job's group.

        Args:
            root: A directory that holds ``/proc`` (for recorded trees); empty for the real one.
        """
        paths = memberships(files.read(f"{root}/proc/self/cgroup") or b"")
        path = paths.get("memory", paths.get("", ""))
        # Version 2 names a group outside our namespace by "/..".
        mounts = files.read(f"{root}/proc/self/mountinfo", 1 << 20) or b""
        return cls("" if path.startswith("/..") else path, _marks(mounts))

    def match(self, path: str) -> bool:
        """Whether a group is the job's, or one below it.

        Args:
            path: Its path, from the root.
        """
        if self.path and (path == self.path or path.startswith(self.path + "/")):
            return True
        return any(mark in path for mark in self.marks)


def _marks(mountinfo: bytes) -> tuple[str, ...]:
    """Ids of our container or pod; none where what is mounted tells of several."""
    pods, containers = set(), set()
    for line in mountinfo.decode("utf-8", "replace").splitlines():
        fields = line.split(" ")
        if len(fields) > 5 and fields[4] in _GIVEN_BY_RUNTIME:
            pods.update(_POD.findall(fields[3] + "/"))
            containers.update(_CONTAINER.findall(fields[3] + "/"))
    if len(containers) == 1:
        return tuple(containers)
    if len(pods) == 1:
        # systemd's slices have "_" where the id has "-".
        return tuple(form for pod in pods for form in (pod, pod.replace("-", "_")))
    return ()
