"""The observer that all frameworks share: steps, compiles with their causes, source lines, logged values, precision.

A framework's own folder has its adapter: hooks that make the evidence of a compile, and the causes that only it has.
Nothing here imports a framework.
"""
