"""Personal data: what is found, and what only looks like it."""

from __future__ import annotations

import pytest

from helpers.dataset_build.personal import find_personal, iban, luhn, mask_personal

AT = "@"
FOUND = [
    (f"write to jo.doe+news{AT}mail.example.org.", "write to [EMAIL].", "email"),
    (f"({AT.join(('a', 'b.co'))})", "([EMAIL])", "email"),
    ("call +49 170 1234567 now", "call [PHONE_NUMBER] now", "phone number"),
    ("call +1 (212) 555-0187", "call [PHONE_NUMBER]", "phone number"),
    ("(212) 555-0187", "[PHONE_NUMBER]", "phone number"),
    ("212.555.0187", "[PHONE_NUMBER]", "phone number"),
    ("DE89 3704 0044 0532 0130 00", "[IBAN]", "iban"),
    ("to GB82WEST12345698765432, please", "to [IBAN], please", "iban"),
    ("4111 1111 1111 1111", "[CARD_NUMBER]", "card number"),
    ("card 378282246310005", "card [CARD_NUMBER]", "card number"),
    ("ping 8.8.8.8", "ping [IP_ADDRESS]", "ip address"),
    ("2001:4860:4860::8888", "[IP_ADDRESS]", "ip address"),
    ("sk-" + "a1B2" * 8, "[API_KEY]", "api key"),
    ("key AKIA" + "ABCDEFGH12345678", "key [API_KEY]", "api key"),
    ("ghp_" + "x" * 36, "[API_KEY]", "api key"),
    ("-----BEGIN RSA PRIVATE" + " KEY-----", "[API_KEY]", "api key"),
]
NOT_FOUND = [
    "on 2024-05-17 at 10:30:15, for 1.234.567,89 euros",
    "version 10.2.1.300, or 1.2.3.4.5",
    "localhost is 127.0.0.1, the router 192.168.0.1",
    "pi is 3.14159265358979323846",
    "4111 1111 1111 1112",  # fails Luhn's check
    "DE88 3704 0044 0532 0130 00",  # fails the remainder
    "1234567890123456",
    "0000 0000 0000 0000",
    "@someone and foo@bar",
    "a ratio of 100-200-3000 to one",
    "ISBN 978-3-16-148410-0",
    "sk-learn and sk-short",
    "12:30:45 and ab:cd:ef:01:23:45",
    "solve 3+4*5-6",
]


@pytest.mark.parametrize(("text", "masked", "kind"), FOUND)
def test_it_is_found_and_masked(text: str, masked: str, kind: str):
    assert mask_personal(text) == (masked, [kind])
    assert find_personal(text) == [kind]


@pytest.mark.parametrize("text", NOT_FOUND)
def test_what_only_looks_like_it_is_left_alone(text: str):
    assert mask_personal(text) == (text, [])


@pytest.mark.parametrize(("text", "masked", "kind"), FOUND)
def test_nothing_is_left_to_find_in_a_masked_text(text: str, masked: str, kind: str):
    assert find_personal(masked) == []


def test_each_kind_is_named_once_and_every_find_is_masked():
    text = f"a{AT}example.org, b{AT}example.org and 8.8.8.8"
    assert find_personal(text) == ["email", "ip address"]
    assert mask_personal(text)[0] == "[EMAIL], [EMAIL] and [IP_ADDRESS]"


def test_checks_of_numbers():
    assert luhn("79927398713") and not luhn("79927398710") and not luhn("0000000000")
    assert iban("GB82 WEST 1234 5698 7654 32") and not iban("GB83 WEST 1234 5698 7654 32")
