"""The types of settings, with the values that they allow."""

from typing import Annotated

from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=365 * 86400)]
Days = Annotated[float, Meta(ge=0, le=36_500)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Index = Annotated[int, Meta(ge=0, le=1_000_000_000)]
