"""The watcher in a cluster: pods in, incidents out.

Level-triggered: what is known of an attempt of a job is looked at as a whole each time, and what has been told is
marked on the job itself, so that a restart at any moment loses nothing and repeats nothing.
"""
