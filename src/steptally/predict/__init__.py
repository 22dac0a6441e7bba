"""Closed forms over a job: needs neither torch nor polars."""
