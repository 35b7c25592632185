"""Quantities that no run and no scaling study holds: one function each, named `file.function` in a claim.

A measure takes keyword-only, typed options with defaults and returns a `Measured`. It draws from its own seed, so that
it gives the same value again on the same machine.
"""
