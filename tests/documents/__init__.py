"""Documents agree with the code: tables, links, examples and cited numbers.

Documents whose commands need a running cluster are tested in `programs/clients`.
"""
