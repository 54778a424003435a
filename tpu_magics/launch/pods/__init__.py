"""Training on many hosts: sends a run to every host of a Ray cluster, follows it, and fetches its results.

Only this folder imports Ray, inside functions, and only after `%tpu_init --hosts`.
"""
