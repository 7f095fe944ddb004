"""The store: one protocol, the real one on etcd, one in memory, and an etcd of our own."""
