"""Programs that use recipes on a simulated cluster, and the judgement of what they did.

- ``programs``: client processes, which are paused, cut off and killed
- ``watches``: their watches, which go from member to member
- ``replay``, ``tenures``: which key was whose when, by the committed log
- ``stage``, ``uses``: what programs do with recipes
- ``blocks``: when a program was inside a block, by its own account
- ``judge``: whether the two agree, with nothing of the recipes' own code

Their troubles are in ``simulation/workloads/programs.py``. Read ``judge.py`` first.
"""
