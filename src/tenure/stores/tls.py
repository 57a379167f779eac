"""The TLS options of a URL, with the names that redis-py, and so a Redis URL, gives them."""

import ssl
from collections.abc import Mapping
from typing import Any

from tenure.errors import UsageError
from tenure.stores.urlparts import Option, one_of, switch, text

TRUST = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

TLS_OPTIONS: Mapping[str, Option] = {
    "ssl_ca_certs": text("ssl_ca_certs", "/etc/ssl/ca.pem"),
    "ssl_ca_path": text("ssl_ca_path", "/etc/ssl/certs"),
    "ssl_certfile": text("ssl_certfile", "/etc/ssl/client.pem"),
    "ssl_keyfile": text("ssl_keyfile", "/etc/ssl/client.key"),
    "ssl_password": text("ssl_password", "%2A%2A%2A"),
    "ssl_cert_reqs": Option(one_of(*TRUST), "must be none, optional or required, as ?ssl_cert_reqs=required"),
    "ssl_check_hostname": switch("ssl_check_hostname"),
}


def tls_context(scheme: str, given: dict[str, Any], plain: str, secure: str) -> ssl.SSLContext | None:
    """Return the TLS context of the options of a URL; None for a `plain` scheme, which takes none of them.

    Raises UsageError if a file cannot be loaded. No message repeats a value, because it may be a password.
    """
    if scheme != secure:
        if given:
            raise UsageError(f"the option {min(given)} is for TLS only; write {secure}:// instead of {plain}://.")
        return None
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"), capath=given.get("ssl_ca_path"))
        if "ssl_certfile" in given:
            password = given.get("ssl_password", "")  # without it OpenSSL would prompt for one at the terminal
            context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"), lambda: password)
        trust = TRUST[given.get("ssl_cert_reqs", "required")]
        context.check_hostname = given.get("ssl_check_hostname", True) and trust is ssl.CERT_REQUIRED
        context.verify_mode = trust
    except (OSError, ValueError) as error:
        raise UsageError(
            f"a certificate or key named in the {plain} URL cannot be loaded ({type(error).__name__}); check "
            "ssl_ca_certs, ssl_certfile, ssl_keyfile and ssl_password."
        ) from None
    return context
