"""The SDK's protobuf messages, loaded by themselves.

Importing the `tinker` package would cost over a second and bring a client along.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def _load_protobuf() -> ModuleType:
    name = "tinker.proto.tinker_public_pb2"
    if name in sys.modules:
        return sys.modules[name]
    package = importlib.util.find_spec("tinker")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the tinker SDK is not installed; its protobuf module is needed")
    path = Path(package.submodule_search_locations[0]) / "proto" / "tinker_public_pb2.py"
    spec = importlib.util.spec_from_file_location("_engine_tinker_public_pb2", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: the tinker SDK has no protobuf module there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pb = _load_protobuf()
