"""A small training run without any dependency: it fits a line, keeps every epoch in memory, and runs out of it.

The failure is real: the program limits its own address space, and the allocation that passes the limit fails.
"""

import random
import resource

LIMIT = 300 << 20
BATCHES, BATCH = 40, 256


def batch(source: random.Random) -> list[tuple[float, float]]:
    """One batch of points near y = 3x + 1."""
    points = (source.uniform(-1, 1) for _ in range(BATCH))
    return [(x, 3 * x + 1 + source.gauss(0, 0.1)) for x in points]


def main() -> None:
    """Train until the memory is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    source = random.Random(0)
    weight, bias, rate = 0.0, 0.0, 0.2
    history = []
    for epoch in range(1, 20):
        loss = 0.0
        for _ in range(BATCHES):
            points = batch(source)
            errors = [weight * x + bias - y for x, y in points]
            weight -= rate * 2 * sum(e * x for e, (x, _) in zip(errors, points, strict=True)) / BATCH
            bias -= rate * 2 * sum(errors) / BATCH
            loss = sum(e * e for e in errors) / BATCH
        print(f"epoch {epoch} | loss {loss:.4f} | weight {weight:.3f} | bias {bias:.3f}", flush=True)
        # The bug: every epoch's activations are kept.
        history.append(bytearray(60 << 20))


if __name__ == "__main__":
    main()
