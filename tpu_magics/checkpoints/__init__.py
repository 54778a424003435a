"""Checkpoints of runs: what a broken run needs to go on."""
