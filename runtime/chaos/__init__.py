"""`reknit chaos`: faults for a running job of one's own, to see that it recovers, and how soon.

`watch` follows the job in etcd, `situation` is what it sees, `choice` decides what to strike and when (both pure),
`runtime.identity` makes sure that a process is what the job's records say, `injector` sends the signals, `report`
counts.  `runner` ties these together, `command` is the command line.
"""
