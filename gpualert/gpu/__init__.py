"""GPUs as their drivers show them: what there is, how it stands, and what breaks. For the collector alone."""
