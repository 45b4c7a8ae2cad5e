"""The log: batches, terms, the journal, and every way in which they can be damaged."""
