"""Renders a tally for a terminal or as one HTML file; computes nothing."""
