"""Fills a tally from what a real run left behind."""
