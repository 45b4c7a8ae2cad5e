"""Messages: etcd's, as protobuf compiled them, and the payloads that stand in our log.

- `rpc.proto`: etcd's messages under etcd's names and numbers; `rpc_pb2.py` is compiled from it
- `requests.py`: what an entry of the log, a query and a reply contain
- `together.py`: requests that share an entry
- `requested.py`: the keys that a payload names, and the payload in words
- `wire.py`: a few bytes of protobuf, written without an object
"""
