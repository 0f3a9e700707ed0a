"""From a log and the facts of a run to the class of its failure (pure functions over plain data)."""
