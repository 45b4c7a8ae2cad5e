"""Hot paths in C, each with a twin in Python that gives the same results.

`resp_reader.py` specifies the functions and holds the twins; `resp_reader.c` is compiled where
there is a compiler. Nothing here knows commands, clients or the state machine.
"""
