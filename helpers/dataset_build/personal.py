"""Personal data in a text: conservative patterns, checked where the kind of number has a check.

A pattern cannot find a name or a street. What these find is nearly always what it looks like: a card number
must pass Luhn's check, an IBAN the remainder of ISO 13616, an address of the Internet must have bytes of 0 to
255; a date, a version or a price is none of them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of personal data: its name, its shape, and a check of what has the shape."""

    name: str
    pattern: re.Pattern[str]
    check: Callable[[str], bool] = lambda found: True


def luhn(number: str) -> bool:
    """Whether the digits of `number` pass the check of card numbers (ISO/IEC 7812-1)."""
    digits = [int(char) for char in number if char.isdigit()]
    doubled = [d if place % 2 == 0 else sum(divmod(2 * d, 10)) for place, d in enumerate(reversed(digits))]
    return len(set(digits)) > 1 and sum(doubled) % 10 == 0


def iban(text: str) -> bool:
    """Whether country, check digits and account leave remainder 1 modulo 97 (ISO 13616)."""
    compact = re.sub(r"\s", "", text).upper()
    if not 15 <= len(compact) <= 34:
        return False
    turned = compact[4:] + compact[:4]
    return int("".join(str(int(char, 36)) for char in turned)) % 97 == 1


def public_address(text: str) -> bool:
    """Whether an IP address is a machine's out there: no loopback, private or documentation address."""
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


def phone(text: str) -> bool:
    """Whether it has as many digits as a number with area code has, and they are not all the same."""
    digits = re.sub(r"\D", "", text)
    return 9 <= len(digits) <= 15 and len(set(digits)) > 2


_KEYS = (
    r"sk-[A-Za-z0-9_-]{20,}",  # OpenAI and its like
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",  # Amazon
    r"gh[pousr]_[A-Za-z0-9]{36,}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{40,}",
    r"hf_[A-Za-z0-9]{30,}",
    r"AIza[0-9A-Za-z_-]{35}",  # Google
    r"xox[abprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",  # a signed web token
    r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
)
_PHONE = (
    r"\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){2,4}",  # international
    r"\([2-9]\d{2}\)[ .-]?[2-9]\d{2}[ .-]\d{4}",  # (212) 555-0187: North America begins with 2 to 9
    r"[2-9]\d{2}[.-][2-9]\d{2}[.-]\d{4}",  # 212-555-0187
)
# In this order: a card number inside an IBAN, or a phone number inside a card number, is the longer thing.
KINDS = (
    Kind("api key", re.compile(r"(?<![\w-])(?:" + "|".join(_KEYS) + ")")),
    Kind("email", re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]+\.)+[A-Za-z]{2,24}(?![\w-])")),
    Kind(
        "iban",
        re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,4})?(?!\w)"),
        iban,
    ),
    Kind("card number", re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-]|\.\d)"), luhn),
    Kind("ip address", re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)"), public_address),
    Kind(
        "ip address",
        re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){2,7}(?::|[0-9A-Fa-f]{1,4})(?::?[0-9A-Fa-f]{1,4})*"),
        public_address,
    ),
    Kind("phone number", re.compile(r"(?<![\w.+-])(?:" + "|".join(_PHONE) + r")(?![\w-]|\.\d)"), phone),
)


def find_personal(text: str) -> list[str]:
    """Kinds of personal data in `text`, each once, in the order of KINDS."""
    return list(dict.fromkeys(mask_personal(text)[1]))


def mask_personal(text: str) -> tuple[str, list[str]]:
    """The text with every find replaced by its kind, as in [EMAIL], and the kinds found, one a find."""
    found: list[str] = []
    for kind in KINDS:

        def replace(match: re.Match[str], kind: Kind = kind) -> str:
            if not kind.check(match.group()):
                return match.group()
            found.append(kind.name)
            return f"[{kind.name.upper().replace(' ', '_')}]"

        text = kind.pattern.sub(replace, text)
    return text, found
