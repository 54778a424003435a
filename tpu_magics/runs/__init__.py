"""What happened in a run: the schema of its records, their writers and readers, and the run folder.

What lives here: the standard library's reach only, because every notebook and every worker imports it. Import what you
need from its module (`from tpu_magics.runs.reader import Run`); nothing is re-exported. What does not: how a run is
made (launch/) and how it is shown (panel/).
"""
