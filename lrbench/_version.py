"""The version of the package, kept apart so that it can be read without importing anything else."""

__version__ = "0.1.0"
