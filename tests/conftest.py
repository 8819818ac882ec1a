"""What all tests share."""

from hypothesis import settings

# A machine that others use too may be slow at any moment: what a test case takes says nothing about the code.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")
