"""The same sweep, never killed: what every killed one must come to."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from in_one_process import WRITES_FILE
from sweep_under_test import IN_ONE_PROCESS, WORDS, NewSweep, SweepUnderTest, write_card


@pytest.fixture(scope="session")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A card whose phases are long enough to be hit."""
    return write_card(tmp_path_factory.mktemp("card"))


@pytest.fixture(scope="session")
def quick_card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same card, a dozen times as fast."""
    return write_card(tmp_path_factory.mktemp("quick-card"), quick=True)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, quick_card: Path) -> Path:
    """A sweep that ran to its end: its folder `s`, and the list of its `writes`."""
    cwd = tmp_path_factory.mktemp("undisturbed")
    words = (*WORDS, f"engine.card_file={quick_card}")
    with SweepUnderTest(cwd, words, program=IN_ONE_PROCESS) as sweep:
        sweep.start(environment={WRITES_FILE: str(cwd / "writes")})
        ended = sweep.wait()
    assert ended.code == 0, ended.output
    return cwd


@pytest.fixture
def new_sweep(tmp_path: Path) -> Iterator[NewSweep]:
    """Makes sweeps; whatever is left of them at the end of the test is ended."""
    with ExitStack() as stack:

        def make(card: Path, **options: object) -> SweepUnderTest:
            cwd = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            cwd.mkdir()
            sweep = SweepUnderTest(cwd, (*WORDS, f"engine.card_file={card}"), **options)
            return stack.enter_context(sweep)

        yield make
