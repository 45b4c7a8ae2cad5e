"""Results to tables and plots: no figure in a document is copied by hand.

``results`` reads and writes figures/NAME.json, and ``sections`` chooses the fields of each table.
``tables`` writes the tables into the documents, ``plots`` draws, and ``goals`` compares the results
with the goals. Nothing here measures. Read ``results.py`` first.
"""
