"""Many hosts: the same run on every host of a cluster, with Ray as the engine.

What lives here: looking at a cluster, sending a run to its hosts, following it there, bringing it home. What does not:
what a host does with its workers; that is the launcher beside this folder, which runs there as it runs here.

Ray is imported inside functions of this folder only, and only once `%tpu_init --hosts` was asked for.
"""
