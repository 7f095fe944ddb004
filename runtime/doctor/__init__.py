"""`reknit doctor`: looks whether this host, its Python and its etcd can do what reknit asks of them, and what to do.

`facts` says what can be known; `host`, `etcd` and `probe` find it out; `judging` says what it means: pure functions.
"""
