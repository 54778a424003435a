"""The token of a Ray cluster (token authentication, ray 2.60), as this process has it.

What lives here: taking it as Ray itself would, and what is said where the cluster wants another. What does not: sending
it (Ray's own channels do). The names used are private to Ray and were read in 2.60 (_private/authentication); a Ray
without them knows no tokens.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.pods.address import LOCAL, Address

MODE = "RAY_AUTH_MODE"
DOCS = "https://docs.ray.io/en/latest/ray-security/token-auth.html"


def load_token(address: Address) -> None:
    """Before this process connects: what %env has changed since Ray's import counts, and for a cluster of this machine
    a token that is here is used, as by `ray.init()`. To an address that was written out Ray sends none by itself."""
    raylet: Any = import_module("ray._raylet")
    if not hasattr(raylet, "AuthenticationTokenLoader"):
        return
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    if address.asked.strip().lower() in LOCAL and not address.client and address.source != "RAY_ADDRESS":
        setup: Any = import_module("ray._private.authentication.authentication_token_setup")
        level = setup.logger.level
        setup.logger.setLevel(logging.ERROR)  # it would recommend to switch the token off
        try:
            setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        finally:
            setup.logger.setLevel(level)


def token_error(address: Address) -> TpuMagicsError:
    """Of a cluster that wants a token that it was not given."""
    sent = os.environ.get(MODE, "").lower() == "token"
    busy = bool(import_module("ray").is_initialized())  # then `take` leaves all as it is
    have = "the one that this notebook has is missing, or is not the cluster's" if sent else "this notebook sends none"
    return TpuMagicsError(
        f"The Ray cluster at {address.text} wants its token.",
        f"It was started with token authentication, and {have}.",
        "Copy ~/.ray/auth_token from the head node to the same place on this machine"
        + ("." if sent else f", and run %env {MODE}=token before %tpu_init.")
        + (" Close the connection that is open first: %tpu_init --hosts off." if busy else "")
        + f" See {DOCS}",
    )
