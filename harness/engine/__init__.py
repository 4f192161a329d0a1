"""The embedded engine: a Tinker-compatible server for one machine, in a process of its own.

Start it with `python -m harness.engine --base-model DIR`; nothing else in the harness imports it.
"""
