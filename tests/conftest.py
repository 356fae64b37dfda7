"""For all tests: none of them depends on how fast the machine is."""

from hypothesis import settings

settings.register_profile("longtail", deadline=None)
settings.load_profile("longtail")
