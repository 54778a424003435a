"""TorchTPU. So far: its runtime for the shared room (runtime.py), and XLA's CPU plugin in the place of a TPU, for
rehearsals (plugin.py). Imports no framework."""
