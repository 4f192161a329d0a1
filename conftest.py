"""Wires the harness into pytest; everything else lives in harness/plugin."""

pytest_plugins = ["harness.plugin"]
