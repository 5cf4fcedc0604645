"""Addresses of homes: an address for each number, and a search by address or number. Pure.

A street has a thousand houses, a district has forty streets; so the address follows from the number, and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUSES = 1_000
STREETS = (
    *("Acacia", "Alder", "Apple", "Ash", "Aspen", "Bay", "Beech", "Birch", "Cedar", "Cherry"),
    *("Chestnut", "Cypress", "Dogwood", "Elder", "Elm", "Fig", "Fir", "Hawthorn", "Hazel", "Hickory"),
    *("Holly", "Hornbeam", "Juniper", "Larch", "Laurel", "Lime", "Linden", "Magnolia", "Maple", "Myrtle"),
    *("Oak", "Olive", "Pear", "Pine", "Plane", "Poplar", "Rowan", "Spruce", "Walnut", "Willow"),
)
DISTRICT = HOUSES * len(STREETS)


def address_of(home: int) -> str:
    district, within = divmod(home, DISTRICT)
    street, house = divmod(within, HOUSES)
    return f"{house + 1} {STREETS[street]} Street" + (f", District {district + 1}" if district else "")


def search(text: str, homes: int, most: int) -> list[int]:
    """The homes that match a search: by number (42, home 42, home-42), or by parts of an address, in any order."""
    words = text.lower().replace(",", " ").replace("-", " ").split()
    numbers = [int(word) for word in words if word.isascii() and word.isdecimal() and len(word) < 12]
    names = [word for word in words if not word.isdecimal() and word not in ("street", "home")]
    if "home" in words or not names:
        return [number for number in numbers[:1] if number < homes and not names]
    found: list[int] = []
    for home in _of_streets(names, numbers, homes):
        found.append(home)
        if len(found) == most:
            break
    return found


def _of_streets(names: list[str], numbers: list[int], homes: int) -> Iterator[int]:
    """The first house of each street that fits; then, if there is room, the next ones: who writes on finds his own."""
    wants_district = "district" in names
    names = [name for name in names if name != "district"]
    district = numbers[-1] - 1 if wants_district and numbers else 0
    houses = numbers[:-1] if wants_district else numbers
    house = houses[0] - 1 if houses else 0
    if not 0 <= house < HOUSES or district < 0:
        return
    places = [place for place, street in enumerate(STREETS) if all(street.lower().startswith(name) for name in names)]
    for number in [house] if houses else range(HOUSES):
        for place in places:
            home = district * DISTRICT + place * HOUSES + number
            if home < homes:
                yield home
