"""The record of a run: events, their writers and readers, and the run folder.

Standard library only, because every notebook and every worker imports it.
"""
