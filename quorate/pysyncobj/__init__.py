"""The names of PySyncObj, for programs that come from it, over :mod:`quorate.objects`."""
