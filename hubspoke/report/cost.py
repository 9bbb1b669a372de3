"""Money: bytes times the price of the region that sends them.

Decides which price applies and what follows from a missing one. It never guesses: a price that
is not in the table and was not given is None, and so is everything that depends on it.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from hubspoke.errors import ConfigError

GB = 1 << 30
USD_PER_GB_MAX = 1e6  # beyond any tariff, and money stays a finite number whatever was sent
NOTE = (
    "billed at the sending region, 1 GB = 2^30 bytes; bytes that this spoke's kernel sent again "
    "(TCP_INFO) are added, those that the hub's sent again and packet headers are not counted"
)


@dataclass(frozen=True, slots=True)
class Prices:
    """USD. transfer: per GB in each direction; storage: per GB and month at the spoke."""

    hub_to_spoke: float | None
    spoke_to_hub: float | None
    storage_month: float | None
    source: str | None


@dataclass(frozen=True, slots=True)
class PriceOverride:
    """What `--price` said: USD per GB hub to spoke, and spoke to hub."""

    hub_to_spoke: float
    spoke_to_hub: float


def parse_price(text: str) -> PriceOverride:
    """ "0.02" for both directions, or "0.02/0.05" for hub to spoke / spoke to hub.

    Raises ConfigError on anything else; 0 is a price, a negative number is not.
    """
    parts = text.split("/")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 <= n <= USD_PER_GB_MAX for n in numbers):
        raise ConfigError(
            f"{text!r}: USD per GB as a number, 0.02, or hub-to-spoke/spoke-to-hub, 0.02/0.05"
        )
    return PriceOverride(numbers[0], numbers[-1])


@cache
def price_table() -> dict[str, Any]:
    """The dated table that ships with the package."""
    table: dict[str, Any] = json.loads(files("hubspoke.report").joinpath("prices.json").read_text())
    return table


def prices_for(hub_region: str, region: str, override: PriceOverride | None) -> Prices:
    """Prices between two regions; the override replaces both transfer prices."""
    table = price_table()
    transfer = {(row["from"], row["to"]): row["price_per_gb"] for row in table["transfer"]}
    storage = {row["region"]: row["price_per_gb_month"] for row in table["storage"]}
    from_table = f"{table['name']}, {table['retrieved']}, {table['source']}"
    month = storage.get(region)
    if override is not None:
        source = "--price" if month is None else f"--price; storage: {from_table}"
        return Prices(override.hub_to_spoke, override.spoke_to_hub, month, source)
    down, up = transfer.get((hub_region, region)), transfer.get((region, hub_region))
    known = any(price is not None for price in (down, up, month))
    return Prices(down, up, month, from_table if known else None)


def cost_of(bytes_: int | None, price_per_gb: float | None) -> float | None:
    """USD for `bytes_`, None if either is not known."""
    if bytes_ is None or price_per_gb is None:
        return None
    return bytes_ / GB * price_per_gb


def total(*parts: float | None) -> float | None:
    """The sum, None if any part is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def cost_section(
    prices: Prices,
    *,
    received_bytes: int,
    sent_bytes: int,
    read_bytes: int,
    full_copy_bytes: int | None,
) -> dict[str, Any]:
    """The report's `cost`. sent_bytes: retransmissions included.

    usd: what the spoke's WAN traffic costs. usd_remote_reads: every byte read, sent over the WAN
    once per read (bodies only, so in the remote reads' favour). usd_full_copy: the copy, and its
    first month of storage at the spoke. saved_usd: usd_remote_reads - usd.
    """
    usd = total(
        cost_of(received_bytes, prices.hub_to_spoke), cost_of(sent_bytes, prices.spoke_to_hub)
    )
    remote = cost_of(read_bytes, prices.hub_to_spoke)
    full_copy = total(
        cost_of(full_copy_bytes, prices.hub_to_spoke),
        cost_of(full_copy_bytes, prices.storage_month),
    )
    return {
        "currency": price_table()["currency"],
        "usd": usd,
        "price_per_gb_hub_to_spoke": prices.hub_to_spoke,
        "price_per_gb_spoke_to_hub": prices.spoke_to_hub,
        "price_source": prices.source,
        "usd_remote_reads": remote,
        "usd_full_copy": full_copy,
        "saved_usd": None if remote is None or usd is None else remote - usd,
        "note": NOTE,
    }
