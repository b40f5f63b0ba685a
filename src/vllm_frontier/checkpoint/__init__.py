"""What the files of a model tell of its memory, before anything is launched."""

from vllm_frontier.checkpoint.prior import prior_for, unread

__all__ = ["prior_for", "unread"]
