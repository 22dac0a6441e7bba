"""Faults of known size, put into real ranks on request: `steptally run --inject SPEC`."""
