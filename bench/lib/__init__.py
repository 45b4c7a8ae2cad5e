"""What the benches share.

- ``harness`` has options, working directories and results; ``measuring`` has loads and instruments.
- ``checking`` and ``acknowledged`` check that nothing acknowledged was lost.
- ``filling`` sets the keys; ``crowd`` and ``crowds`` are clients that count every outcome.
- ``changing`` runs clusters whose members change; ``writers`` and ``written`` are its clients.
- ``competitors``, ``etcd_api`` and ``storage_peers`` run other products under the same load;
  ``turns`` measures two clusters in turns.

Nothing here runs by itself. Read ``harness.py`` and ``measuring.py`` first.
"""
