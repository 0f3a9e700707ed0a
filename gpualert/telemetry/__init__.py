"""What is measured beside a run, by a process of its own: GPUs, memory, processes, progress, hangs."""
