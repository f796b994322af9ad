"""Stop strings: found wherever the text is cut, and never leaked in part."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_engine.llm.stop_strings import StopMatch, StopStringFilter


def naive(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """Looks at every character in turn: the definition, written the slow way."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            stop = max(hits, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


def partial_len(seen: str, stops: list[str]) -> int:
    """Length of the longest end of `seen` that a later piece could complete to a stop string."""
    ends = [stop[:length] for stop in stops for length in range(1, len(stop))]
    return max((len(end) for end in ends if seen.endswith(end)), default=0)


def run(pieces: list[str], stops: list[str], include_stop: bool = False) -> tuple[str, str | None]:
    stop_filter = StopStringFilter(stops, include_stop=include_stop)
    shown = seen = ""
    for piece in pieces:
        seen += piece
        result = stop_filter.push(piece)
        if isinstance(result, StopMatch):
            return shown + result.text, result.stop
        shown += result
        assert len(shown) <= len(seen) - partial_len(seen, stops), "a part of a stop was shown"
    return shown + stop_filter.flush(), None


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("hello END world", ["END"], ("hello ", "END")),
        ("hello EN", ["END"], ("hello EN", None)),
        ("aab", ["ab"], ("a", "ab")),
        ("abc", ["abc", "b"], ("a", "b")),
        ("xabc", ["bc", "abc"], ("x", "abc")),
        ("", ["a"], ("", None)),
        ("\u00e9\u2603\U0001f600!", ["\u2603\U0001f600"], ("\u00e9", "\u2603\U0001f600")),
        ("no stops at all", [], ("no stops at all", None)),
    ],
)
def test_every_two_way_split_finds_the_same_stop(
    text: str, stops: list[str], expected: tuple[str, str | None]
) -> None:
    for cut in range(len(text) + 1):
        assert run([text[:cut], text[cut:]], stops) == expected
    assert run(list(text), stops) == expected


@given(
    text=st.text(alphabet="ab\n", max_size=24),
    stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 24), max_size=6),
    include_stop=st.booleans(),
)
def test_any_cut_equals_the_definition(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    assert run(pieces, stops, include_stop) == naive(text, stops, include_stop)


def test_a_stop_completed_too_early_is_ordinary_text() -> None:
    stop_filter = StopStringFilter(["END"])
    assert stop_filter.push("aENDb", may_stop=False) == "aENDb"
    assert stop_filter.push("cEN", may_stop=False) == "c"
    result = stop_filter.push("Dx")
    assert result == StopMatch("END", "")


def test_text_before_the_early_boundary_is_not_searched_again() -> None:
    stop_filter = StopStringFilter(["aa"])
    assert stop_filter.push("aa", may_stop=False) == "a"
    assert stop_filter.push("b") == "ab"
    assert stop_filter.flush() == ""
