"""The figures of the docs, made again with one command: `make bench` (or `python -m tests.benchmarks [NAME ...]`).

What lives here: one module for each benchmark, `bench_<name>.py`, with `TITLE`, `measure() -> list[dict]` (one dict for
each row, its keys are the column headings) and, where it has targets, `notes(rows) -> list[str]`. What does not: tests
that pass or fail; tests/test_benchmarks.py looks at the machinery only, never at times.
"""
