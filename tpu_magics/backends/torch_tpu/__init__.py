"""TorchTPU. So far: XLA's CPU plugin in the place of a TPU (plugin.py), for rehearsals. Imports no framework."""
