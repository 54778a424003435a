"""Finds what a training function changed besides weights, and applies the changes to the notebook's objects.

    notebook, before the fork:   snapshot.take_snapshot()     numbers the objects that the work reaches
    worker, after the function:  changes.ChangeCollector      writes what differs, objects by number
    notebook, after the run:     restore.stage().apply()      changes the objects in place, all or nothing

After a fork the worker's objects are copies of the notebook's at the same addresses, so a number identifies an object.
"""
