"""The papers' claims as measured statements: read from YAML, measured, judged."""
