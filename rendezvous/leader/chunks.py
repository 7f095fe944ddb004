"""Operations in portions that one transaction of the store can take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reknit.rendezvous.store.protocol import Operation, Put

OPERATIONS, BYTES = 100, 900_000  # of one transaction; etcd's defaults are 128 and 1.5 MiB


def chunks(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """The operations in order, in chunks that one transaction can take."""
    chunk: list[Operation] = []
    size = 0
    for operation in operations:
        added = len(operation.key) + (len(operation.value) if isinstance(operation, Put) else 0)
        if chunk and (len(chunk) >= OPERATIONS or size + added > BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(operation)
        size += added
    if chunk:
        yield chunk
