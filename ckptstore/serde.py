"""Serializers for bindings and native threads: the protocol, the plain one, and `dump`, whose errors name the part that was refused."""

from ckptstore.codec.serde import Serde, dump
from ckptstore.state.plain import PlainSerde

__all__ = ["PlainSerde", "Serde", "dump"]
