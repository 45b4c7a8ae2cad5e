"""Recordings: what members did, in one form for live members, simulation and torture.

A recording is a file of JSON lines: a head that says what was recorded, then events in the order of
time. The page, `quorate top` and the converters read nothing else. A live member sends the same
events to those who watch it, so what was seen live can be seen again.

``events``, ``head`` are what a recording has; ``writing`` and ``reading`` are files of it; ``ring``
and ``gathering`` keep a file bounded and off the event loop, also for the audit log. ``merging``
joins files of several clocks and checks the result; ``shiviz`` and ``perfetto`` write other forms.

This room knows no members: it has names of kinds and fields, files, and times. Read first:
``events.py`` (the kinds, and what each has), then ``reading.py``.
"""

from .events import FORMAT_VERSION, KINDS, NOBODY, Event, Fields, Source

__all__ = ["FORMAT_VERSION", "KINDS", "NOBODY", "Event", "Fields", "Source"]
