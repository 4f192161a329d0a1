"""Wires the harness into pytest where it is not installed; it lives in harness/plugin."""

pytest_plugins = ["harness.plugin"]
