"""The public names: listed, lazy, and helpful when misspelt."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

import reknit


def test_every_public_name_has_a_home() -> None:
    homes = vars(reknit)["_HOMES"]
    assert set(dir(reknit)) == {*homes, "__version__"}
    for module in homes.values():
        assert importlib.util.find_spec(module), module


def test_a_public_name_is_the_one_at_its_home() -> None:
    from reknit.rendezvous import errors

    assert reknit.ReknitError is errors.ReknitError


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'jion'; it offers .*join"):
        _ = reknit.jion


def test_the_version_is_the_installed_one() -> None:
    assert reknit.__version__ == importlib.metadata.version("reknit")
