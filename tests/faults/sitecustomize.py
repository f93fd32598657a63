"""Loaded by every Python process that a test gives faults: wraps modules when they are imported."""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import inject


class Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and wraps its functions once it is loaded."""

    def __init__(self, watch: inject.Watch) -> None:
        self.watch = watch
        self.waiting = set(inject.MODULES)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.waiting:
            return None
        self.waiting.discard(name)  # now the other finders search
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.watch.patch(module, setattr)

        spec.loader.exec_module = exec_module
        return spec


if file := os.environ.get(inject.VARIABLE):
    sys.meta_path.insert(0, Finder(inject.Watch(inject.FromFile(Path(file)))))
