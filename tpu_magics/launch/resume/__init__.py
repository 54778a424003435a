"""Saving a run's state between two batches, and going on from there: in a worker, while the user's loops run."""
