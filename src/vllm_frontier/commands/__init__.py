"""The commands of `vllm-frontier`, one function each; `cli` brings them together."""
