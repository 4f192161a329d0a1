"""Where components live, and which one a name means."""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from harness.components.component import Component
from harness.components.settings import nearest
from harness.errors import CardError

ENTRY_POINTS = "harness.components"
"""The group under which an installed package offers modules, each named after a component in it."""

AnyComponent = TypeVar("AnyComponent", bound=Component)

Key = tuple[type[Component], str]


@dataclass(frozen=True)
class Source:
    """A component that is none of the harness's own: the file, and a hash of what it depends on.

    The hash is of the module without the other components that it declares, so that an edited gate
    leaves an estimator beside it as it was. Comments and layout are not in it.
    """

    file: str
    sha256: str


@dataclass(frozen=True)
class Components:
    """The components that an experiment may name, by kind and name.

    `sources` has those that are not the harness's own.
    """

    declared: Mapping[Key, Component]
    sources: Mapping[Key, Source] = field(default_factory=dict)

    @classmethod
    def built_in(cls, components: Iterable[Component]) -> "Components":
        """The harness's own."""
        return cls({(type(component), component.name): component for component in components})

    def find(self, kind: type[AnyComponent], name: str) -> AnyComponent:
        """The component of that kind and name.

        Raises:
            CardError: there is none; the line has the nearest name, and all of them.
        """
        found = self.declared.get((kind, name))
        if isinstance(found, kind):
            return found
        known = self.names(kind)
        raise CardError(
            f"{kind.kind} {name!r} is unknown{nearest(name, known)}; use one of "
            f"{', '.join(known)}, or name the file that declares it in components"
        )

    def names(self, kind: type[Component]) -> list[str]:
        """Every name of a kind, sorted."""
        return sorted(name for of, name in self.declared if of is kind)

    def own(self, kind: type[AnyComponent]) -> dict[str, AnyComponent]:
        """Those of a kind that are none of the harness's own, by name."""
        return {name: self.find(kind, name) for of, name in self.sources if of is kind}

    def named(self, kind: str) -> dict[str, str]:
        """The file of each component of a kind that is none of the harness's own, by name."""
        return {n: source.file for (of, n), source in self.sources.items() if of.kind == kind}

    def get(self, kind: str, name: str) -> Component | None:
        """The component of that kind, in words, and name; None if there is none."""
        found = (c for (of, n), c in self.declared.items() if of.kind == kind and n == name)
        return next(found, None)

    def source_sha256(self, kind: type[Component], name: str) -> str | None:
        """The hash of what a component depends on; None of the harness's own."""
        source = self.sources.get((kind, name))
        return None if source is None else source.sha256

    def with_files(self, files: Sequence[Path]) -> "Components":
        """These, and those that files declare.

        Raises:
            CardError: a file can't be read or run, declares a name that is taken, or imports a file
                beside it that is not listed; one line each.
        """
        problems: list[str] = []
        parsed: list[tuple[Path, bytes, ast.Module]] = []
        for path in files:
            try:
                parsed.append((path, *_parsed(path)))
            except CardError as error:
                problems.append(str(error))
        problems += _unlisted([(path, tree) for path, _, tree in parsed])
        if problems:  # what is not listed could be run, and nothing would hash it
            raise CardError("\n".join(problems))
        modules: list[tuple[str, ModuleType, ast.Module]] = []
        for path, data, tree in parsed:
            try:
                modules.append((path.name, _executed(path, data), tree))
            except CardError as error:
                problems.append(str(error))
        components = self._joined(modules, problems)
        if problems:
            raise CardError("\n".join(problems))
        return components

    def with_installed(self, wanted: Iterable[str]) -> "Components":
        """These, and those of the names wanted that an installed package offers.

        A name that some component has already is not looked for.

        Raises:
            CardError: what offers a name can't be imported.
        """
        found, problems = self, list[str]()
        missing = set(wanted) - {name for _, name in self.declared}
        for entry in metadata.entry_points(group=ENTRY_POINTS):
            if entry.name not in missing:
                continue
            try:
                module = entry.load()
            except Exception as error:
                problems.append(f"{entry.value} can't be imported: {_said(error)}; mend it")
                continue
            tree = ast.parse(Path(module.__file__).read_bytes())
            found = found._joined([(entry.value, module, tree)], problems)
        if problems:
            raise CardError("\n".join(problems))
        return found

    def _joined(
        self, modules: Sequence[tuple[str, ModuleType, ast.Module]], problems: list[str]
    ) -> "Components":
        declared, sources = dict(self.declared), dict(self.sources)
        # a listed file that declares nothing is a helper: whatever is declared depends on it
        helpers = [ast.dump(tree) for _, module, tree in modules if not _components_of(module)]
        trees = {Path(file).stem: tree for file, _, tree in modules}
        for file, module, tree in modules:
            imported = [ast.dump(trees[name]) for name in _reached(tree, trees)]
            own = _components_of(module)
            for variable, component in own.items():
                key = type(component), component.name
                if key in declared:
                    problems.append(
                        f"{file}: {component.kind} {component.name!r} is declared already; give it "
                        "another name"
                    )
                    continue
                declared[key] = component
                parts = [_without(tree, set(own) - {variable}), *helpers, *imported]
                sources[key] = Source(file, hashlib.sha256("\n".join(parts).encode()).hexdigest())
        return Components(declared, sources)


def _parsed(path: Path) -> tuple[bytes, ast.Module]:
    """A file's bytes and its syntax."""
    try:
        data = path.read_bytes()
        return data, ast.parse(data, path.name)
    except OSError as error:
        raise CardError(
            f"component {path.name}: can't be read ({error.strerror}); looked at {path}, write "
            "that file or correct its name in components"
        ) from None
    except (SyntaxError, ValueError) as error:
        raise CardError(f"component {path.name}: no Python ({_said(error)}); correct it") from None


def _executed(path: Path, data: bytes) -> ModuleType:
    """A file as a module of its own, run once for each content that it has."""
    name = f"component_{path.stem}_{hashlib.sha256(bytes(path) + data).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    # dataclasses and pydantic look a class's module up by its name
    sys.modules[name] = module
    try:
        with _siblings(path.parent):
            exec(compile(data, str(path), "exec"), module.__dict__)  # the user's own code
    except Exception as error:
        del sys.modules[name]
        raise CardError(
            f"component {path.name}: can't be run ({_said(error)}); correct it"
        ) from error
    return module


@contextmanager
def _siblings(folder: Path) -> Iterator[None]:
    """Let a file import those beside it; afterwards their names are free for other folders'."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            beside = "." not in name and file is not None and Path(file).parent == folder
            if beside and not name.startswith("component_"):
                del sys.modules[name]


def _components_of(module: ModuleType) -> dict[str, Component]:
    """What a module declares itself, by variable; what it imports from the harness is not its."""
    return {
        variable: value
        for variable, value in vars(module).items()
        if isinstance(value, Component) and value.home == module.__name__
    }


def _unlisted(files: Sequence[tuple[Path, ast.Module]]) -> list[str]:
    """Imports of files beside a component that nobody has listed, so that nothing hashes them."""
    listed = {path.stem for path, _ in files}
    return [
        f"component {path.name}: imports {name} beside it; list {name}.py in components, so that "
        "its source is registered too"
        for path, tree in files
        for name in sorted(set(_imported(tree)))
        if name not in listed and (path.parent / f"{name}.py").is_file()
    ]


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def _reached(tree: ast.Module, trees: Mapping[str, ast.Module]) -> list[str]:
    """The listed files that a file imports, directly or by others, sorted."""
    reached, waiting = set[str](), [tree]
    while waiting:
        found = set(_imported(waiting.pop())) & trees.keys() - reached
        reached |= found
        waiting += [trees[name] for name in found]
    return sorted(reached)


def _without(tree: ast.Module, variables: set[str]) -> str:
    """The module's syntax without these variables, and without what makes it a test file."""
    kept = [node for node in tree.body if not (names := _defines(node)) or not names <= variables]
    kept = [node for node in kept if not all(map(_of_pytest, _defines(node) or {""}))]
    return ast.dump(ast.Module(kept, []))


def _of_pytest(name: str) -> bool:
    """Whether a name is of a test file that declares components: its card or a test."""
    return name == "CARD" or name.startswith("test_")


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
