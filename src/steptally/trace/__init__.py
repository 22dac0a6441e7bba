"""Reads recordings into one columnar schema (polars); knows the run directory."""
