"""The figures of the docs, measured with one command: `make bench` (or `python -m tests.benchmarks [NAME ...]`).

Each module `bench_<name>.py` has `TITLE`, `measure() -> list[dict]` (a dict for each row; its keys are the column
headings) and, if it has targets, `notes(rows) -> list[str]`.
"""
