"""Where Flower is served, and to whom."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator

from pecia_schemas.settings.base import ConnectionSettings


class FlowerSettings(ConnectionSettings):
    """Where Flower is served, and to whom."""

    flower_port: int = Field(default=5555, ge=0, le=65535)
    """Where `pecia up` and `pecia flower` serve Flower. 0: not at all."""
    flower_address: str = "127.0.0.1"
    """The address it listens on. On another than loopback, let a proxy with TLS stand before it."""
    flower_user: str = "pecia"
    """Whom it lets in."""
    flower_password: SecretStr = SecretStr("")
    """By which password. Empty: `pecia up` makes one and keeps it in its home, `pecia flower` refuses to start."""
    flower_max_tasks: int = Field(default=5_000, ge=1)
    """Most parts that it keeps in memory, the latest ones: 90 MB for 5,000, half a gigabyte for 100,000."""
    flower_url_prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_/-]*$")
    """Path under which a proxy serves it, as in `flower` for `https://scans.example.org/flower/`."""

    @field_validator("flower_user")
    @classmethod
    def _is_user(cls, user: str) -> str:
        if not user or ":" in user or not _is_plain(user):
            message = "is no name to log in by: printable ASCII without a colon."
            raise ValueError(message)
        return user

    @field_validator("flower_password")
    @classmethod
    def _is_password(cls, password: SecretStr) -> SecretStr:
        if not _is_plain(password.get_secret_value()):
            message = "holds what no browser sends alike: printable ASCII alone."
            raise ValueError(message)
        return password


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()
