"""What cards and this machine say about themselves, and how much memory a launch takes.

NVIDIA cards are asked through NVML, which is loaded at the first question and not before: a
machine without a driver gets an answer, not an error, and one whose driver hangs gets it within a
limit of time. Memory is in GiB everywhere.
"""

from vllm_frontier.telemetry.host import host_memory_used_gib, tree_memory_gib
from vllm_frontier.telemetry.nvml import (
    CardProcess,
    CardReading,
    Probe,
    cards,
    lost_card,
    probe,
    told_silent,
)
from vllm_frontier.telemetry.sampler import Sampler
from vllm_frontier.telemetry.summary import summarize

__all__ = [
    "CardProcess",
    "CardReading",
    "Probe",
    "Sampler",
    "cards",
    "host_memory_used_gib",
    "lost_card",
    "probe",
    "summarize",
    "told_silent",
    "tree_memory_gib",
]
