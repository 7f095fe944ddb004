"""What the accessors raise.  Shapes that cannot be are `LayoutError`s, here as everywhere."""

from __future__ import annotations

from reknit.rendezvous.errors import ReknitError


class MpuError(ReknitError):
    """The root of what is wrong with the order in which the accessors are called."""


class NotInitialized(MpuError):
    """Asked for something that `initialize_model_parallel` has not made, or that `destroy_model_parallel` took away."""


class AlreadyInitialized(MpuError):
    """`initialize_model_parallel` was called a second time.  The groups that stand are untouched."""
