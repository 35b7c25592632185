"""The machine and the software: what goes into every record (`fingerprint`), and what a user is told (`doctor`)."""

from lrbench.environment.checks import Check, doctor
from lrbench.environment.model import Environment, fingerprint

__all__ = ["Check", "Environment", "doctor", "fingerprint"]
