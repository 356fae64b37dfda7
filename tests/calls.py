"""How much a function does, whatever the machine: by the calls it makes, not by the seconds it takes."""

import sys


def count_calls(function, *arguments):
    """Calls of functions, of Python and of C, until ``function`` returns."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return calls
