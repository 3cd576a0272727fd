"""Addresses as users read them, and as browsers send them back."""

from __future__ import annotations

import pytest

from rlplat.listening import foreign_request, in_url


@pytest.mark.parametrize(("host", "shown"), [("::1", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("localhost",) * 2])
def test_an_address_in_a_url_is_that_of_a_request_to_it(host: str, shown: str) -> None:
    address = in_url(host, 8265)
    assert address == f"{shown}:8265"
    assert foreign_request(address, f"http://{address}") is None
