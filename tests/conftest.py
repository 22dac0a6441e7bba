"""What holds for every test."""

from hypothesis import settings

# A test passes or fails by its result: on a busy machine any example may take seconds.
settings.register_profile("steptally", deadline=None)
settings.load_profile("steptally")
