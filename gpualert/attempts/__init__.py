"""Memory over attempts: whether a job fails again in the same way, and whether it gets any further."""
