"""Every command but ``run``: what a person types afterwards."""
