"""The runs of a sweep in the shape in which a million of them are read once, and no more.

Tables are made of many figures, and most of them of the same few columns. They are read together;
launches are numbered, so that runs are grouped by small numbers instead of ids; texts, which are
most of a sweep, are read only of the runs whose text is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

import polars as pl

from vllm_frontier.analyze.latest import AXES, CELL
from vllm_frontier.analyze.packed import packed, paired
from vllm_frontier.analyze.speed import decode_runs
from vllm_frontier.outcome import Status

SETTING = "setting"
"""What must be the same of two cells beside depth, graphs, window and share, to be compared:
further axes, engine and card, and what was measured."""

REQUEST = ("task", "variant", "repeat")
"""What was asked. Prompts differ, and are the same in every launch of a workload, so that launches
are compared pair by pair."""

_OF_A_LAUNCH = (
    *("sweep", "spec_state", "purpose", "started_at", "sequence", "engine", "card"),
    *("changed", "workload"),
)
_OF_A_RUN = (
    *("task", "repeat", "kind", "concurrency", "temperature", "variant"),
    *("prompt_tokens", "completion_tokens", "cached_tokens", "decode_tok_s", "prefill_tok_s"),
    *("decode_tok_s_server", "decode_tok_s_client", "drafts", "draft_tokens", "accepted_tokens"),
    *("output_sha256", "output_logprob", "output_logprob_expected"),
    *("throttle_reasons", "throttled_share"),
    *("foreign_processes", "foreign_gib", "foreign_cores"),
)
_OF_A_DECODE = (
    *("row", "launch", *REQUEST, "temperature", "completion_tokens"),
    *("decode_tok_s", "drafts", "draft_tokens", "accepted_tokens", "positions"),
)
_OF_A_TEXT = ("row", "launch", *REQUEST, "prompt_tokens", "completion_tokens")
_PIECE = 32_768  # rows; as many as there are in a group of rows of a file
_TEXTS_AT_MOST = 50_000  # outputs that are compared
_TEXTS_AT_LEAST = 2  # of these of each launch and task


class Digest:
    """The launches of a sweep that were measured, and its runs; every part is made when asked for.

    Rows of runs are named by `row`, their place in the table `runs`.
    """

    def __init__(self, trials: pl.LazyFrame, runs: pl.LazyFrame) -> None:
        """Of the tables `trials` and `runs`."""
        self.trials = trials
        self._runs = runs
        self._texts: list[tuple[Future[pl.DataFrame], pl.LazyFrame]] | None = None

    @cached_property
    def launches(self) -> pl.DataFrame:
        """The measured launches.

        `launch` (a number, in the order of time), `cell` (that of its first launch), cell_id,
        attempt, the axes, `setting`, and what `trials` has of them.
        """
        words = [pl.col("extra").fill_null("{}")]
        words += [pl.col(name).fill_null("") for name in ("changed", "workload")]
        return (
            self.trials.filter(
                pl.col("status") == Status.MEASURED.value,
                pl.col("attempt") > 0,
                pl.col("cell_id").is_not_null(),
            )
            .unique(CELL, keep="last", maintain_order=True)
            .sort("started_at", "sequence", "cell_id", "attempt", nulls_last=True)
            .select(*CELL, *AXES, *_OF_A_LAUNCH)
            .with_row_index("launch")
            .with_columns(
                pl.concat_str(words, separator="\n").alias(SETTING),
                cell=pl.col("launch").min().over("cell_id"),
            )
            .collect()
        )

    @cached_property
    def runs(self) -> pl.DataFrame:
        """All runs, with the columns that figures are made of; words are categories.

        Also `row`, `launch` and `cell` (null where the launch was not measured) and `positions`
        (how many are counted of its drafts).
        """
        positions = pl.col("accepted_per_position").list.len().cast(pl.Int64)
        told = (
            self._runs.with_row_index("row")
            .select("row", *CELL, *_OF_A_RUN, positions=positions)
            .with_columns(pl.col("task", "kind").cast(pl.Categorical))
            .collect()
        )
        return pl.concat([told.drop(CELL), self._named(told)], how="horizontal")

    def _named(self, runs: pl.DataFrame) -> pl.DataFrame:
        """What names each run: those of a launch follow each other, so that few are looked up."""
        blocks = runs.select(pl.struct(CELL).rle().struct.unnest()).unnest("value")
        names = self.launches.select(*CELL, "launch", "cell")
        known = blocks.join(names, on=CELL, how="left", maintain_order="left")
        known = known.with_columns(pl.col("cell_id").cast(pl.Categorical))
        return known.select(
            pl.col(name).repeat_by("len").explode(empty_as_null=True)
            for name in (*CELL, "launch", "cell")
        )

    @cached_property
    def measured(self) -> pl.DataFrame:
        """The runs of measured launches."""
        runs = self.runs
        return runs.filter(pl.col("launch").is_not_null()) if runs["launch"].null_count() else runs

    @cached_property
    def decode(self) -> pl.DataFrame:
        """Those of them of one request at a time that tell a speed.

        `log_speed` is its natural logarithm, `accepted` the tokens that were by any counter.
        """
        told = (
            decode_runs(self.measured.lazy())
            .select(*_OF_A_DECODE, log_speed=pl.col("decode_tok_s").log())
            .collect()
        )
        uncounted = told.filter(pl.col("accepted_tokens").is_null(), pl.col("positions") > 0)
        if uncounted.is_empty():
            return told.rename({"accepted_tokens": "accepted"})
        return (
            told.join(self._by_position(uncounted["row"]), on="row", how="left")
            .with_columns(accepted=pl.coalesce("accepted_tokens", "_by_position"))
            .drop("accepted_tokens", "_by_position")
        )

    def _by_position(self, rows: pl.Series) -> pl.DataFrame:
        """Accepted tokens by the counters of each position, where all of them tell."""
        positions = pl.col("accepted_per_position").list
        whole = positions.drop_nulls().list.len() == positions.len()
        found = self.more(rows, "accepted_per_position")
        return found.select("row", _by_position=pl.when(whole).then(positions.sum()))

    @cached_property
    def by_launch(self) -> pl.DataFrame:
        """Of each launch and task what its decode runs come to.

        Medians of `decode_tok_s` and `log_speed`; `runs`; `squares` and `freedom` of `log_speed`
        about its mean; `drafts`, `accepted` and `told_*` (sums
        over runs that tell both; `told_runs` of them also tell their tokens); `shortest` (tokens
        of a run); `made`, `draft_tokens`, `all_accepted` (sums of what is told), `says_made`
        (whether any run tells `made`) and `positions`.
        """
        counted = pl.col("drafts").is_not_null() & pl.col("accepted").is_not_null()
        told = counted & (pl.col("completion_tokens") > 0)
        spare = pl.len() - 1
        return (
            self.decode.lazy()
            .group_by("launch", "task")
            .agg(
                pl.col("log_speed", "decode_tok_s").median(),
                pl.len().cast(pl.Int64).alias("runs"),
                pl.col("drafts", "accepted").filter(counted).sum(),
                pl.col("drafts", "accepted").filter(told).sum().name.prefix("told_"),
                (pl.col("completion_tokens") - 1).filter(told).sum().alias("told_tokens"),
                told.sum().cast(pl.Int64).alias("told_runs"),
                pl.col("completion_tokens").min().alias("shortest"),
                squares=pl.col("log_speed").var().fill_null(0.0) * spare,
                freedom=spare.cast(pl.Int64),
                made=pl.col("drafts").sum(),
                draft_tokens=pl.col("draft_tokens").sum(),
                all_accepted=pl.col("accepted").sum(),
                says_made=pl.col("drafts").is_not_null().any(),
                positions=pl.col("positions").max(),
            )
            .with_columns(pl.col("task").cast(pl.String))
            .collect(engine="streaming")
        )

    @cached_property
    def requests(self) -> pl.DataFrame:
        """What was asked by decode runs: `request`, a number in the order of `REQUEST`."""
        asked = self.decode.select(REQUEST).unique().sort(REQUEST)
        return asked.with_row_index("request")

    @cached_property
    def by_request(self) -> pl.DataFrame:
        """Of each launch and `request` the median `log_speed`."""
        asked = self.decode.select("launch", *REQUEST, "log_speed").join(
            self.requests, on=REQUEST, how="left", nulls_equal=True, maintain_order="left"
        )
        return medians(asked, "launch", "request")

    @cached_property
    def compared(self) -> pl.DataFrame:
        """Greedy decode runs whose text is compared: some of each launch and task.

        `text` is the `row` of `texts` that tells what was written.
        """
        groups = self.decode.select(packed("launch", "task").alias("_group"))
        each = max(_TEXTS_AT_LEAST, _TEXTS_AT_MOST // max(1, groups["_group"].n_unique()))
        greedy = pl.concat([self.decode, groups], how="horizontal").lazy()
        first = pl.col("repeat").fill_null(-1).rank("ordinal").over("_group") <= each
        rows = greedy.filter(pl.col("temperature") == 0).filter(first).select("row").collect()
        return self.runs[rows["row"]].select(*_OF_A_TEXT, _text())

    @cached_property
    def probes(self) -> pl.DataFrame:
        """Runs of measured launches that rate a text; `text` as of `compared`."""
        columns = ("task", "temperature", "output_logprob", "output_logprob_expected")
        rated = self.measured.lazy().filter(pl.col("kind") == "probe")
        return rated.select("row", "launch", *columns, _text()).collect()

    @cached_property
    def texts(self) -> pl.DataFrame:
        """`row` and `output_token_ids` of the texts of `compared` and of `probes`."""
        # From the other end, so that both are done at the same time.
        begun = reversed(self.read_texts())
        told = [each.collect() if read.cancel() else read.result() for read, each in begun]
        return pl.concat(told)

    def read_texts(self) -> list[tuple[Future[pl.DataFrame], pl.LazyFrame]]:
        """Begin to read `texts`, which takes longest; figures can be made meanwhile."""
        if self._texts is None:
            rows = pl.concat([self.compared["text"], self.probes["text"]]).unique()
            reader = ThreadPoolExecutor(max_workers=1)
            pieces = self._pieces(rows, "output_token_ids")
            self._texts = [(reader.submit(each.collect), each) for each in pieces]
            reader.shutdown(wait=False)
        return self._texts

    def more(self, rows: pl.Series, *columns: str) -> pl.DataFrame:
        """Further columns of some runs: `row` and these, in the order of the table."""
        return pl.concat(each.collect() for each in self._pieces(rows, *columns))

    def _pieces(self, rows: pl.Series, *columns: str) -> Iterator[pl.LazyFrame]:
        """The same piece by piece, without those that have none of the rows.

        Few are in memory at a time, and other figures can be made meanwhile.
        """
        yield self._runs.head(0).with_row_index("row").select("row", *columns)
        wanted = rows.to_frame("row").sort("row").with_columns(_piece=pl.col("row") // _PIECE)
        for some in wanted.partition_by("_piece", maintain_order=True):
            start = _PIECE * some["_piece"].item(0)
            runs = self._runs.slice(start, _PIECE).with_row_index("row", offset=start)
            yield runs.filter(pl.col("row").is_in(some["row"].implode())).select("row", *columns)


def _text() -> pl.Expr:
    """The first run that wrote the same, by digest and number of tokens."""
    row, digest = pl.col("row"), pl.col("output_sha256")
    first = row.min().over(digest, "completion_tokens")
    return pl.when(digest.is_null()).then(row).otherwise(first).alias("text")


def medians(told: pl.DataFrame, one: str, other: str) -> pl.DataFrame:
    """The median `log_speed` by two columns of numbers below 2^32."""
    keyed = told.select(one, other, "log_speed", _key=paired(one, other))
    if keyed["_key"].n_unique() == keyed.height:
        return keyed.drop("_key")
    figures = [pl.col(one, other).first(), pl.col("log_speed").median()]
    return keyed.group_by("_key").agg(figures).drop("_key")
