"""The Ray cluster that attempts run on: one of our own, or one that is there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray

from vllm_frontier.errors import EngineError, Interrupted
from vllm_frontier.launch.family import kill_family
from vllm_frontier.launch.folders import owned_folder, remove_tmp
from vllm_frontier.launch.processes import ProcessId, process_table
from vllm_frontier.spec import SweepSpec
from vllm_frontier.trial.plan import Plan

# What stands for a card on a node without GPUs; a cluster's CPU nodes declare it themselves:
# ray start --resources='{"frontier_card": 1}'
CPU_CARD = "frontier_card"
# Characters: a socket's path has at most 107, and Ray adds
# /r/session_2026-01-31_23-59-59_123456_4194304/sockets/plasma_store.
LONGEST_SCRATCH = 107 - 67


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for Ray's own files, removed at the end; the paths of its sockets stay short."""
    try:
        folder = owned_folder("vf-ray-", longest=LONGEST_SCRATCH)
    except OSError as error:
        raise EngineError(f"no folder for Ray's own files can be made: {error.strerror}") from error
    try:
        yield folder
    finally:
        remove_tmp(folder)


class OwnCluster:
    """What of a cluster that this process started must not end before it.

    The driver itself takes a minute to notice that Ray's control store is gone, and is then
    aborted.
    """

    NEEDED = ("raylet", "gcs_server")

    def __init__(self) -> None:
        children = {each.name(): ProcessId.of(each.pid) for each in psutil.Process().children()}
        self._needed = {name: children[name] for name in self.NEEDED if name in children}

    def workers(self) -> list[int]:
        """Pids of the processes that the raylet started, its agents among them."""
        raylet = self._needed.get("raylet")
        table = process_table() if raylet is not None else {}
        return [each.pid for each in table.values() if raylet and each.ppid == raylet.pid]

    def check(self) -> None:
        """Raise Interrupted once one of the processes has ended, and end the others."""
        for name, process in self._needed.items():
            if process is None or not process.alive():
                # With the raylet go its workers' launches; shutting Ray down takes a while, and
                # some of its processes would notice only after a minute.
                kill_family()
                raise Interrupted(f"Ray's {name} ended")


def start_ray(plan: Plan, scratch: Path) -> None:
    """Connect to the cluster that the sweep names, or start one on this machine.

    Raises:
        EngineError: it does not answer, does not start, or has no card for this sweep.
    """
    address = plan.spec.schedule.address
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise EngineError(f"no Ray cluster answers at {address}: {reason}") from None
        _check_cluster(plan)
        return
    if plan.cards:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(plan.cards)
    try:
        _start_own_cluster(plan, scratch, quiet)
    except Exception as error:  # noqa: BLE001 - Ray raises just that when its raylet is gone
        kill_family()  # what did start
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise EngineError(f"Ray does not start on this machine: {reason}") from None


def _start_own_cluster(plan: Plan, scratch: Path, quiet: dict[str, Any]) -> None:
    ray.init(
        address="local",  # whatever RAY_ADDRESS says
        num_cpus=max(2, len(plan.cards) + 1),
        num_gpus=len(plan.cards),
        resources={CPU_CARD: 1},
        include_dashboard=False,
        object_store_memory=100 * 1024 * 1024,
        _temp_dir=str(scratch / "r"),
        _node_ip_address="127.0.0.1",
        **quiet,
    )


def _check_cluster(plan: Plan) -> None:
    wanted = resources(plan.spec)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(_fits(wanted, have) for have in nodes):
        ray.shutdown()
        raise EngineError(
            "the Ray cluster has no node for this sweep: one node must have "
            + ", ".join(f"{name}: {amount:g}" for name, amount in wanted.items())
        )


def _fits(wanted: Mapping[str, float], have: Mapping[str, float]) -> bool:
    return all(have.get(name, 0) >= amount for name, amount in wanted.items())


def resources(spec: SweepSpec) -> dict[str, float]:
    """What one attempt takes of a node."""
    if spec.card.kind == "nvidia":
        return {"GPU": float(spec.engine.tensor_parallel)}
    return {CPU_CARD: 1.0}


def slots(spec: SweepSpec) -> int:
    """How many attempts fit the cluster at once."""
    wanted = resources(spec).items()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    slots = sum(min(int(have.get(name, 0) // need) for name, need in wanted) for have in nodes)
    return max(1, slots)
