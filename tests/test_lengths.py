"""Lengths as they are typed."""

import subprocess
import sys

import pytest

from lrbench.errors import SpecError
from lrbench.lengths import parse_lengths


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("512..16384", [512, 1024, 2048, 4096, 8192, 16384]),
        ("512..10000", [512, 1024, 2048, 4096, 8192]),
        ("512..2048:+512", [512, 1024, 1536, 2048]),
        ("512..2000:+512", [512, 1024, 1536]),
        ("512..4096:x1.5", [512, 768, 1152, 1728, 2592, 3888]),
        ("1..4:x1.1", [1, 2, 3, 4]),
        ("512,1000,4096", [512, 1000, 4096]),
        (" 4096 , 512,512, ", [512, 4096]),
        ("512 .. 1024, 3000", [512, 1024, 3000]),
        ("7", [7]),
        ("7..7", [7]),
    ],
)
def test_lengths_rise_and_stand_once(text: str, lengths: list[int]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    ("text", "trouble", "way_out"),
    [
        ("0", "at least 1", "512..16384"),
        ("0..512", "at least 1", "512..16384"),
        ("-5", "at least 1", "512..16384"),
        ("16384..512", "backwards", "write 512..16384"),
        ("512..", "no end", "512..16384"),
        ("..512", "no start", "512..16384"),
        ("long", "not a length", "512..16384"),
        ("512..4096:*2", "no step", ":x1.5"),
        ("512..4096:+0", "no step", ":+512"),
        ("512..4096:x1", "no step", ":x1.5"),
        ("512..4096:x0.5", "no step", ":x1.5"),
        ("1..100000:+1", "more than 256", "larger step"),
        ("1e3", "not a length", "512..16384"),
        ("512.5", "not a length", "512..16384"),
        ("", "no length", "512..16384"),
        (" , ", "no length", "512..16384"),
    ],
)
def test_what_is_no_length_is_refused_with_the_way_out(text: str, trouble: str, way_out: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_lengths(text)
    assert "--lengths" in caught.value.message and trouble in caught.value.message
    assert way_out in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


def test_lengths_need_nothing_heavy() -> None:
    code = "import sys, lrbench.lengths; assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
