"""`python -m vllm_frontier`."""

from vllm_frontier.cli import main

main()
