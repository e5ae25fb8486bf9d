"""The modules beside a pipeline's file: its own, of that version, and no other pipeline's.

In: the file, its text, and texts of modules that came with it, or a folder to read them in. Out:
an `import` for its code that gives its own modules first, also later, inside functions.
Always holds: installed packages are shared, and never get a pipeline's module for one of theirs.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    BuiltinImporter,
    ExtensionFileLoader,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from importlib.util import decode_source, resolve_name, spec_from_file_location
from threading import RLock
from types import CodeType, ModuleType
from typing import Any, NamedTuple

LOADED_AS = "__pipeline__"  # not __main__: what is below `if __name__ …` does not run
SHARED = frozenset({"spmd", "codegen", LOADED_AS})
LIBRARIES = frozenset(os.path.abspath(sysconfig.get_paths()[key])
                      for key in ("stdlib", "platstdlib", "purelib", "platlib"))

_numbers = itertools.count(1)
_all: dict[str, OwnModules] = {}  # by their package, a name that nobody else has


class FoundModule(NamedTuple):
    """A module that was found. text: None where it is compiled, or a folder. locations: where parts
    of a package lie."""

    file: str
    text: str | None
    locations: list[str] | None


class OwnModules:
    """The modules of one pipeline. file, text: of the pipeline; folder: where its modules lie.
    travelled: name, file and text of each module that came with it; None: they are read there."""

    def __init__(self, file: str, text: str, folder: str,
                 travelled: Iterable[Mapping[str, str]] | None = None) -> None:
        self.file, self.text, self.folder = file, text, folder
        self.package = f"__pipeline_{next(_numbers)}__"
        self.builtins = {**vars(builtins), "__import__": self._import}
        self.plain: dict[str, ModuleType] = {}  # by the names that their code knows them by
        self._shared = list(sys.path)
        self._path: list[str] | None = None  # as the text has left it
        self._is_own: dict[str, bool] = {}
        self._is_free: dict[str, bool] = {}
        self._found: dict[str, FoundModule | None] = {}
        self.travelled = None if travelled is None else {
            module["name"]: FoundModule(module["file"], module["text"], _locations(module["file"]))
            for module in travelled}
        parent = ModuleType(self.package)
        parent.__path__ = []
        sys.modules[self.package], _all[self.package] = parent, self

    def close(self) -> None:
        """Forget the modules, since nobody uses the pipeline any more."""
        _all.pop(self.package, None)
        for name in [n for n in sys.modules if n.partition(".")[0] == self.package]:
            del sys.modules[name]

    # ---- while its code runs

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let its modules also go by their plain names, for whoever asks by name: pickle,
        importlib. sys.argv is that of a file without arguments."""
        plain_names.begin(self)
        try:
            yield
        finally:
            plain_names.end(self)

    @contextmanager
    def running(self, module: ModuleType) -> Iterator[None]:
        """Let the text of the file run as this module, while it is open. Folders that it adds to
        sys.path are its own."""
        module.__dict__.update(__builtins__=self.builtins, __package__=self.package)
        self._shared = list(sys.path)
        self._is_own.clear()
        try:
            with self.active():
                plain_names.add(self, LOADED_AS, module)
                yield
        finally:
            self._path = list(sys.path)
            self._is_own.clear()
            sys.path[:] = [p for p in sys.path if p in self._shared or _is_library(p)]

    # ---- which modules are its own

    def has(self, top: str) -> bool:
        """Return whether a module of this name is the pipeline's own, not a shared one."""
        if top not in self._is_own:
            self._is_own[top] = self._decided(top)
        return self._is_own[top]

    def _decided(self, top: str) -> bool:
        if top in SHARED or BuiltinImporter.find_spec(top) or FrozenImporter.find_spec(top):
            return False
        if self.travelled is not None:
            module = self._compiled(self._own_folders(), top)
            return module is not None or any(
                name.partition(".")[0] == top for name in self.travelled)
        own, folder = set(self._own_folders()), False
        for entry in [self.folder, *self._whole_path()]:
            if os.path.abspath(entry) in own:
                module = _on_disk([os.path.abspath(entry)], top)
                if module and module.file:
                    return True
                folder = folder or module is not None
            elif _is_there(PathFinder.find_spec(top, [entry])):
                return False
        return folder and not any(  # a folder is a package only where there is nothing else
            finder.find_spec(top, None) for finder in sys.meta_path
            if finder not in (PathFinder, OwnFinder))

    def _whole_path(self) -> list[str]:
        return sys.path if self._path is None else self._path

    def _own_folders(self) -> list[str]:
        added = [p for p in self._whole_path() if p not in self._shared]
        return [p for p in map(os.path.abspath, [self.folder, *added]) if not _is_library(p)]

    def is_free(self, top: str) -> bool:
        """Return whether there is no shared module of its name, for which it could be taken."""
        if top not in self._is_free:
            shared = [p for p in self._shared if os.path.abspath(p) not in self._own_folders()]
            self._is_free[top] = top not in sys.stdlib_module_names and not _is_there(
                PathFinder.find_spec(top, shared))
        return self._is_free[top]

    def find(self, name: str) -> FoundModule | None:
        """Return one of its own modules, by its whole name; its text is read once."""
        if self._found.get(name) is None:
            parent, _, tail = name.rpartition(".")
            above = self.find(parent) if parent else None
            folders = (above.locations if above else None) or [] if parent else (
                self._own_folders())
            self._found[name] = self._sought(name, folders, tail)
        return self._found[name]

    def _sought(self, name: str, folders: list[str], tail: str) -> FoundModule | None:
        if self.travelled is None:
            return _on_disk(folders, tail)
        if name in self.travelled:
            return self.travelled[name]
        if any(other.startswith(f"{name}.") for other in self.travelled):
            return FoundModule("", None, [os.path.join(folder, tail) for folder in folders])
        return self._compiled(folders, tail)

    def _compiled(self, folders: list[str], tail: str) -> FoundModule | None:
        """Return a compiled module, which cannot travel as text, from where the file lies; None if
        there is none."""
        module = _on_disk(folders, tail)
        return module if module and module.file and module.text is None else None

    def texts(self) -> list[dict[str, str]]:
        """Return name, file and text of each module that its code imports, also inside
        functions."""
        modules = {name: module for name, module in self._found.items()
                   if module and module.text is not None}
        todo = [("", self.text, True), *((name, module.text or "", module.locations is not None)
                                         for name, module in modules.items())]
        while todo:
            for name in _imported(*todo.pop()):
                if name in modules or not self.has(name.partition(".")[0]):
                    continue
                try:
                    module = self.find(name)
                except ImportError:
                    continue  # whoever imports it is told
                if module and module.text is not None:
                    modules[name] = module
                    todo.append((name, module.text, module.locations is not None))
        return [{"name": name, "file": module.file, "text": module.text or ""}
                for name, module in sorted(modules.items())]

    # ---- import

    def spec(self, name: str) -> ModuleSpec | None:
        """Return the spec of one of its own modules, for Python's import."""
        module = self.find(name)
        if module is None:
            return None
        private = f"{self.package}.{name}"
        if not module.file:
            spec = ModuleSpec(private, None, is_package=True)
            spec.submodule_search_locations = list(module.locations or ())
            return spec
        loader = ExtensionFileLoader(private, module.file) if module.text is None else (
            OwnLoader(self, name, private, module))
        return spec_from_file_location(private, module.file, loader=loader,
                                       submodule_search_locations=module.locations)

    def _import(self, name: str, globals: Mapping[str, Any] | None = None,
                locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0) -> Any:
        """Import a module as builtins.__import__ does, for the code of this pipeline."""
        package = (globals or {}).get("__package__") or ""
        if level and package.partition(".")[0] == self.package:
            name = resolve_name("." * level + name, package)[len(self.package) + 1 :]
        elif level or not self.has(name.partition(".")[0]):
            return self._shared_one(name, globals, locals, fromlist, level)
        try:
            module = import_module(f"{self.package}.{name}" if name else self.package)
            for imported in fromlist or ():
                parts = getattr(module, "__all__", ()) if imported == "*" else (imported,)
                for part in parts:
                    below = f"{name}.{part}" if name else part
                    if not hasattr(module, part) and hasattr(module, "__path__") and (
                            self.find(below)):
                        import_module(f"{self.package}.{below}")
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(f"{self.package}."):
                raise
            plain = (error.name or "")[len(self.package) + 1 :]
            raise ModuleNotFoundError(f"No module named {plain!r}", name=plain) from None
        return module if fromlist else sys.modules[f"{self.package}.{name.partition('.')[0]}"]

    def _shared_one(self, name: str, *how: Any) -> Any:
        try:
            return builtins.__import__(name, *how)
        except ModuleNotFoundError as error:
            if error.name != name or self.travelled is None or not _on_disk(
                    self._own_folders(), name.partition(".")[0]):
                raise
            raise ModuleNotFoundError(
                f"No module named {name!r} came with {self.file}: it was not there, or no import "
                "statement of the file named it, when it was submitted", name=name,
                path=self.file) from None  # no package: whoever tells of it looks at the path


class ShownNames:
    """The plain names in sys.modules belong to the pipeline whose code began last and runs. Threads
    may run several; imports do not depend on it, only who asks by name."""

    def __init__(self) -> None:
        self.running: list[OwnModules] = []
        self._shown: OwnModules | None = None
        self._hidden: dict[str, ModuleType | None] = {}  # what bore these names before
        self._argv = sys.argv
        self._lock = RLock()

    def own(self) -> OwnModules | None:
        return self._shown

    def begin(self, own: OwnModules) -> None:
        with self._lock:
            self.running.append(own)
            self._show(own)

    def end(self, own: OwnModules) -> None:
        with self._lock:
            self.running.remove(own)
            self._show(self.running[-1] if self.running else None)

    def add(self, own: OwnModules, name: str, module: ModuleType) -> None:
        with self._lock:
            own.plain[name] = module
            if own is self._shown:
                self._hidden.setdefault(name, sys.modules.get(name))
                sys.modules[name] = module

    def take_away(self, own: OwnModules, name: str) -> None:
        with self._lock:
            own.plain.pop(name, None)
            if own is self._shown and name in self._hidden:
                _restore(name, self._hidden.pop(name))

    def _show(self, own: OwnModules | None) -> None:
        if own is self._shown:
            return
        if self._shown is None:
            self._argv = sys.argv
        for name, before in self._hidden.items():
            _restore(name, before)
        plain = dict(own.plain) if own else {}
        self._hidden = {name: sys.modules.get(name) for name in plain}
        sys.modules.update(plain)
        sys.argv = [own.file] if own else self._argv
        self._shown = own


def _restore(name: str, module: ModuleType | None) -> None:
    if module is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = module


plain_names = ShownNames()


class OwnLoader(SourceFileLoader):
    """A module of a pipeline's own, from its text."""

    def __init__(self, own: OwnModules, name: str, private: str, module: FoundModule) -> None:
        super().__init__(private, module.file)
        self.own, self.plain, self.text = own, name, module.text or ""

    def get_source(self, fullname: str) -> str:
        return self.text

    def get_code(self, fullname: str) -> CodeType:
        linecache.cache[self.path] = (
            len(self.text), None, self.text.splitlines(True), self.path)
        return compile(self.text, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self.own.builtins
        if free := self.own.is_free(self.plain.partition(".")[0]):
            module.__name__ = self.plain
            plain_names.add(self.own, self.plain, module)
        try:
            super().exec_module(module)
        except BaseException:
            if free:
                plain_names.take_away(self.own, self.plain)
            raise


class OwnFinder:
    """Finds modules of pipelines: by names below their packages, and, of the one whose code runs,
    by plain names that no shared module has."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        top, _, rest = name.partition(".")
        if own := _all.get(top):
            return own.spec(rest) if rest else None
        own = plain_names.own()
        return own.spec(name) if own and own.has(top) and own.is_free(top) else None


sys.meta_path.insert(0, OwnFinder)


def _is_library(folder: str) -> bool:
    folder = os.path.abspath(folder)
    return folder in LIBRARIES or os.path.basename(folder) in ("site-packages", "dist-packages")


def _is_there(spec: ModuleSpec | None) -> bool:
    """Return whether a module is there, or a package that is more than a folder."""
    return spec is not None and spec.loader is not None and spec.origin is not None


def _locations(file: str) -> list[str] | None:
    return [os.path.dirname(file)] if os.path.basename(file) == "__init__.py" else None


def _on_disk(folders: Iterable[str], tail: str) -> FoundModule | None:
    """Return a module as Python finds it: a package, a compiled module, a text; a mere folder where
    nothing else is."""
    plain = []
    for folder in folders:
        base = os.path.join(folder, tail)
        compiled = [base + suffix for suffix in EXTENSION_SUFFIXES]
        for file in (os.path.join(base, "__init__.py"), *compiled, f"{base}.py"):
            if os.path.isfile(file):
                text = None if file in compiled else _text(file)
                return FoundModule(file, text, _locations(file))
        if os.path.isdir(base):
            plain.append(base)
    return FoundModule("", None, plain) if plain else None


def _text(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            return decode_source(opened.read())
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ImportError(f"{file} cannot be read: {error}") from None


def _imported(name: str, text: str, is_package: bool) -> Iterator[str]:
    """Return all modules that a text may import: those that its statements name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [imported.name for imported in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".") if package else []
            above = above[: len(above) - node.level + 1] if node.level else []
            base = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            named = [base, *(f"{base}.{imported.name}".strip(".") for imported in node.names)]
        for imported in named:
            parts = imported.split(".")
            yield from (".".join(parts[:k]) for k in range(1, len(parts) + 1) if imported)
