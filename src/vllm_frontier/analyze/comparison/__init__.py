"""Sweeps side by side: cells matched by their axes, and what one sweep is against another.

Cells are matched by their axes and by nothing else: a cell that only one sweep has stands alone.
"""
