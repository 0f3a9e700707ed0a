"""Kubernetes: what goes into manifests, and what is read from a cluster."""
