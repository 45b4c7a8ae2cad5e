"""The client of a cluster: connections, requests and watches over sockets."""
