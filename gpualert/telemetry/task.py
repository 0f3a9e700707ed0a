"""What the supervisor wants of the collector."""

from __future__ import annotations

from dataclasses import dataclass

from gpualert.rundir import shapes

_SHAPE = shapes.table(
    {
        **dict.fromkeys(("child", "supervisor", "launched_us"), shapes.whole),
        **dict.fromkeys(("hang_after_s", "hang_warmup_s"), shapes.seconds),
        "textfile": shapes.text,
        "gpus": shapes.switch,
    },
)


@dataclass(frozen=True, slots=True)
class Task:
    """What the supervisor wants.

    Attributes:
        directory: The run's directory.
        tell: The descriptor that takes what the supervisor acts on; -1 for none.
        child: The command's process id.
        supervisor: The supervisor's process id.
        gpus: The driver may be asked; it has not crashed an earlier collector.
        launched_us: When the command was launched, in microseconds since 1970.
        hang_after_s: How long a silence makes a hang, in seconds; 0 for never.
        hang_warmup_s: How long after the launch that is not looked at, in seconds.
        textfile: The directory of node-exporter's textfile collector; None for none.
    """

    directory: str
    tell: int = -1
    child: int = 0
    supervisor: int = 0
    gpus: bool = True
    launched_us: int = 0
    hang_after_s: float = 0.0
    hang_warmup_s: float = 0.0
    textfile: str | None = None

    @classmethod
    def parse(cls, arguments: list[str]) -> Task:
        """The task in the collector's arguments.

        Args:
            arguments: The run's directory, the descriptor, and an object in JSON.

        Raises:
            ValueError: They are something else.
        """
        directory, tell, text = arguments
        told = _SHAPE(shapes.loads(text))
        known = {key: told[key] for key in cls.__dataclass_fields__ if told.get(key) is not None}
        return cls(directory, int(tell), **known)
