"""What observers of both frameworks need: sites, graphs as XLA writes them, compiles by site, the guard.

What lives here: the person's line behind what a library did (sites.py, branches.py), HLO read and compared (hlo.py),
numbering compiles and writing their records (compiled.py, history.py), ending the observing instead of the training
(guarded.py). What does not: any framework, and how one is watched (torch_xla/observe/, tensorflow/observe/).
"""
