import pytest

from vllm_frontier.report.window_ends import marks, window_end


@pytest.mark.parametrize(
    ("longest", "refused", "known", "told"),
    [
        (8192, 16_384, "launched", "8192"),
        (8192, 16_384, "inferred", "8192~"),
        (8192, 32_768, "open", "8192?"),
        (32_768, 16_384, "not monotone", "32768!"),
        (8192, None, "launched", ">=8192"),
        (8192, None, "open", ">=8192?"),
        (None, 8192, "launched", "none"),
        (None, 16_384, "open", "none?"),
        (None, None, "open", "no idea"),
    ],
)
def test_an_end_says_what_it_rests_on(
    longest: int | None, refused: int | None, known: str, told: str
) -> None:
    end = {"max_context_works": longest, "min_context_fails": refused, "known": known}
    assert window_end(end, "no idea") == told
    signs = [each.split()[0] for each in marks([end])]
    assert all((sign in told) == (sign in signs) for sign in (">=", "~", "?", "!"))
