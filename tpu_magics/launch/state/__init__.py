"""What a training function changed besides weights, on its way from a worker to the notebook.

    notebook, before the fork:  snapshot = walk.take(roots, models, adapter)   numbers the objects that the work reaches
    worker, after the function: collect.collect(snapshot, ...)                 writes what differs, objects by number
    notebook:                   staged = restore.stage(...); staged.apply()    in place, all or nothing

After a fork the worker's objects are the notebook's, each at the same place, so a number is enough to name one.
"""
