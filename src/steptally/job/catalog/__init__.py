"""Data with sources: accelerators (`devices.toml`) and models (`models.toml`)."""
