"""Runs that hang: noticing it, and what their processes wait for."""
