"""The tree of reknit's errors.

Every error that reknit raises on purpose is a `ReknitError`; its message says what happened, to whom, and what to do.
This file is the root because `rendezvous` is the lowest folder: everybody may import it.
"""

from __future__ import annotations


class ReknitError(Exception):
    """The root of all errors that reknit raises on purpose."""


class LayoutError(ReknitError, ValueError):
    """Axes, sizes or an order that no set of ranks can have.  Raised before anything is touched."""


class RecordError(ReknitError, ValueError):
    """A value found in the store is not what this version understands; it is counted and skipped, never fatal."""


class StoreError(ReknitError):
    """The store refused or failed an operation."""


class StoreUnavailable(StoreError):
    """The store did not answer within the deadline; the operation may have been applied."""


class StoreRefused(StoreError):
    """The store answered, and the answer is no: authentication, permission, or a request it does not accept."""


class LeaseLost(StoreError):
    """The lease is gone from the store: all keys that hung on it are deleted."""


class Deposed(StoreError):
    """The caller is no longer the leader, or somebody else has published in between: nothing was written."""
