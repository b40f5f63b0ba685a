"""Ray Tune runs the attempts that a search asks for (the only Ray import).

One Tune trial is one attempt. The search sits behind a `Searcher`; the outcome comes back as
a result of the trial, the phases before it as earlier results, so that progress works the
same on this machine and on another node. A raised exception or a lost worker is a fault of
this program or of the cluster and recorded as `failed`, never as an answer about the cell.

Import this module only after `ray_settings.apply`.
"""

from vllm_frontier.schedule.runner import run

__all__ = ["run"]
