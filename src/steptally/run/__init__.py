"""Launches real training ranks and records them."""
