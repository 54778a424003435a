"""Errors of failed runs: `diagnosis.diagnose` explains them, with one module for each family of causes."""
