"""The authentication token of a Ray cluster, which this process sends when it connects.

The private names of Ray were read in 2.60 (_private/authentication). A version of Ray without them has no tokens.
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
    """Load the token before this process connects: variables that %env changed after Ray's import count, and for a
    cluster of this machine the local token is used, as in `ray.init()`. For an address that was given in full Ray does
    not use the local token on its own."""
    raylet: Any = import_module("ray._raylet")
    if not hasattr(raylet, "AuthenticationTokenLoader"):
        return
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    if address.given.strip().lower() in LOCAL and not address.client and address.source != "RAY_ADDRESS":
        setup: Any = import_module("ray._private.authentication.authentication_token_setup")
        level = setup.logger.level
        setup.logger.setLevel(logging.ERROR)  # it would recommend to turn authentication off
        try:
            setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        finally:
            setup.logger.setLevel(level)


def token_error(address: Address) -> TpuMagicsError:
    """The error for a cluster that requires a token and did not get the right one."""
    sent = os.environ.get(MODE, "").lower() == "token"
    connected = bool(import_module("ray").is_initialized())  # then `load_token` changes nothing
    why = "this notebook's token is missing or is not the cluster's token" if sent else "this notebook sends no token"
    return TpuMagicsError(
        f"The Ray cluster at {address.text} requires a token.",
        f"The cluster uses token authentication, and {why}.",
        "Copy ~/.ray/auth_token from the head node to the same path on this machine"
        + ("." if sent else f", and run %env {MODE}=token before %tpu_init.")
        + (" Close the open connection first: %tpu_init --hosts off." if connected else "")
        + f" See {DOCS}",
    )
