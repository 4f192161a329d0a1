"""The rooms of the harness: which may import which, read from the sources themselves."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[1] / "harness"

FLOORS = (
    {"errors", "names", "processes"},
    {"statistics", "methods"},
    {"components"},
    {"estimators", "kernels"},
    {"cards"},
    {"records", "evidence"},
    {"store", "tasks"},
    {"traces", "fingerprints", "embedded"},
    {"decisions"},
    {"training"},
    {"audit"},
    {"protocol"},
    {"lab"},
    {"plugin"},
)
"""From the ground up: a room imports from the floors below its own, and from no neighbour."""

ENGINE = "engine"
"""A program of its own: it imports two modules of the ground floor, and nothing imports it."""

FRONT = "harness"
"""The front door: it offers what rooms declare to an experiment's own files; no room uses it."""

HEAVY = {
    "pytest": {"plugin"},
    "tinker": {"training", "audit", "protocol", "tasks"},
    "tinker_cookbook": {"training", "audit", "protocol", "tasks", "embedded"},
}
"""Packages that only some rooms know, by name."""

FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def _modules() -> dict[str, Path]:
    """Every module of the harness by its dotted name."""
    found = {}
    for path in sorted(HARNESS.rglob("*.py")):
        parts = ("harness", *path.relative_to(HARNESS).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = _modules()


def _imported(path: Path) -> Iterator[str]:
    """Every name that a file imports, inside of functions and for type checks too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (_target(node.module, alias.name) for alias in node.names)


def _target(module: str, name: str) -> str:
    """`from module import name`: the module that is meant, where `name` is one."""
    return f"{module}.{name}" if f"{module}.{name}" in MODULES else module


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else FRONT


def _faults(arrows: list[tuple[str, str]]) -> list[str]:
    """Arrows between rooms that do not run down."""
    faults = []
    for source, target in arrows:
        a, b = _room(source), _room(target)
        if a in (b, FRONT):
            continue
        down = (
            b != FRONT and FLOOR[b] == 0
            if a == ENGINE
            else b not in (ENGINE, FRONT) and FLOOR[b] < FLOOR[a]
        )
        if not down:
            faults.append(f"{source} -> {target}")
    return faults


ARROWS = [
    (module, target)
    for module, path in MODULES.items()
    for target in _imported(path)
    if target in MODULES and target != module
]


def test_every_room_has_a_floor():
    """A new room is placed before anything can lean on it."""
    assert {_room(module) for module in MODULES} == {*FLOOR, ENGINE, FRONT}


def test_arrows_run_down():
    """No module imports from a neighbouring room or from above; nothing imports the engine."""
    assert _faults(ARROWS) == []


@pytest.mark.parametrize(
    "arrow",
    [
        ("harness.training.loop", "harness.audit.executed"),
        ("harness.methods.kernels", "harness.cards.registration"),
        ("harness.decisions.rule", "harness.plugin.options"),
        ("harness.store.entry", "harness.tasks.task"),
        ("harness.training.service", "harness.engine.service"),
    ],
    ids="->".join,
)
def test_an_arrow_that_runs_up_is_a_fault(arrow):
    """Up, sideways, and into the engine: each is named."""
    assert _faults([arrow]) == [f"{arrow[0]} -> {arrow[1]}"]


def test_no_module_is_on_a_circle():
    """Removing modules that import nothing more leaves none."""
    left = {module: {b for a, b in ARROWS if a == module} for module in MODULES}
    while leaves := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in leaves:
            del left[module]
    assert sorted(left) == []


@pytest.mark.parametrize("package", HEAVY)
def test_a_package_stays_in_its_rooms(package):
    """Only `plugin` knows pytest; only rooms that meet a service know its SDK."""
    rooms = {
        _room(module)
        for module, path in MODULES.items()
        if any(name.split(".")[0] == package for name in _imported(path))
    }
    assert rooms - HEAVY[package] == set()
