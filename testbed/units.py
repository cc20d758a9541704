"""Quantities with their units: what a person writes (`400Gbps`, `600ns`, `64KB`) and the whole numbers behind it.

Decimal prefixes are powers of ten (`KB` is 1000 bytes), binary ones powers of two (`KiB` is 1024 bytes).
"""

import re
from decimal import Decimal
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


class _Quantity(int):
    """A whole number of a base unit, read from and written as text with a unit."""

    units: ClassVar[dict[str, int]]
    what: ClassVar[str]
    example: ClassVar[str]
    maximum: ClassVar[int] = 2**62

    @classmethod
    def parse(cls, text: object) -> Self:
        """Reads a number with its unit.

        Raises:
            ValueError: no unit, a unit of something else, a fraction of the base unit, or a number out of range.
        """
        if isinstance(text, cls):
            return text
        known = ", ".join(cls.units)
        if text == 0 or text == "0":
            return cls(0)
        match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r} is not a {cls.what}: write a number and a unit, as in {cls.example} ({known})")
        number, unit = match.groups()
        if unit not in cls.units:
            raise ValueError(f"{unit!r} is not a unit of a {cls.what}: use one of {known}, as in {cls.example}")
        value = Decimal(number) * cls.units[unit]
        if value != int(value):
            raise ValueError(f"{text!r} is finer than this {cls.what} can be")
        if value > cls.maximum:
            raise ValueError(f"{text!r} is too large for a {cls.what}")
        return cls(int(value))

    def __str__(self) -> str:
        for unit, factor in sorted(self.units.items(), key=lambda item: -item[1]):
            if int(self) and int(self) % factor == 0:
                return f"{int(self) // factor}{unit}"
        smallest = min(self.units, key=lambda unit: self.units[unit])
        return f"{int(self)}{smallest}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=core_schema.to_string_ser_schema())


class Duration(_Quantity):
    """A span of fabric time in picoseconds."""

    units: ClassVar[dict[str, int]] = {
        "s": 10**12,
        "ms": 10**9,
        "us": 10**6,
        "ns": 10**3,
        "ps": 1,
    }
    what = "time"
    example = "600ns"

    @property
    def ps(self) -> int:
        return int(self)

    @property
    def ns(self) -> float:
        return int(self) / 1000


class BitRate(_Quantity):
    """A data rate in bits per second."""

    units: ClassVar[dict[str, int]] = {"Tbps": 10**12, "Gbps": 10**9, "Mbps": 10**6, "Kbps": 10**3, "bps": 1}
    what = "rate"
    example = "400Gbps"

    @property
    def bps(self) -> int:
        return int(self)


class Size(_Quantity):
    """A number of bytes."""

    units: ClassVar[dict[str, int]] = {
        "GB": 10**9,
        "MB": 10**6,
        "KB": 10**3,
        "GiB": 2**30,
        "MiB": 2**20,
        "KiB": 2**10,
        "B": 1,
    }
    what = "size"
    example = "64KB"

    @property
    def bytes(self) -> int:
        return int(self)
