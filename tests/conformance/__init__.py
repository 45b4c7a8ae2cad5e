"""Golden transcripts: scripted events, and what each member then says and does.

One text file per scenario in `scripts`, one line per fact. After a change of the protocol
``make test ARGS="tests/conformance --regenerate"`` writes them again; the difference is the review.
Read first: scripts/unanimous_candidate.txt, player.py.
"""
