"""Rules whose counts may only fall: functions that return place -> findings."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from tests.tidy.source import (
    Functions,
    area,
    docstrings,
    module,
    nodes_of,
    own_tests,
    product,
    public,
    walk,
)  # fmt: skip

MAX_FOLDER, MANY_PARAMETERS = 15, 3
ERRORS = "nyala.common.errors"
RIDDLE = re.compile(r"\s*(What|Who|Whom|Whose|Whether|Where|How|When|So many|So long|So much)\b")
Found = dict[str, list[str]]


def large_folders() -> Found:
    """Find the folders with more modules than `MAX_FOLDER`; the count is that of all its modules."""
    folders: Found = defaultdict(list)
    for path in (*product(), *own_tests()):
        folder, _, name = path.rpartition("/")
        if name != "__init__.py":
            folders[folder].append(name)
    return {f: names for f, names in folders.items() if len(names) > MAX_FOLDER}


def single_subclasses() -> Found:
    """Find concrete classes with exactly one subclass: one class that was cut in two.

    Errors are excepted: a subclass is an error that callers can catch apart from its base.
    """
    classes = {(module(p), n.name): n for p, n in walk(ast.ClassDef, product())}
    names = _names()
    below: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (home, name), node in classes.items():
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(plain, ast.Name):
                below[_resolve(names, (home, plain.id))].append(name)
    return {
        f"{base[0]}.{base[1]}": subs
        for base, subs in below.items()
        if len(subs) == 1 and base in classes and base[0] != ERRORS and not _abstract(classes[base])
    }


def repeated_names() -> Found:
    """Find names of public classes that mean more than one thing."""
    homes: Found = defaultdict(list)
    for path, node in walk(ast.ClassDef, product()):
        if not node.name.startswith("_"):
            homes[node.name].append(path)
    return {name: paths for name, paths in homes.items() if len(paths) > 1}


def missing_args() -> Found:
    """Find public functions of many parameters that do not explain them. Verbs have help texts instead."""
    found: Found = defaultdict(list)
    for path, tree in product().items():
        for node in public(tree):
            marks = {ast.unparse(d).split("(")[0].split(".")[-1] for d in node.decorator_list}
            if _parameters(node) < MANY_PARAMETERS or marks & {"verb", "overload", "override"}:
                continue
            if "Args:" not in (ast.get_docstring(node) or ""):
                found[area(path)].append(f"{path}:{node.lineno} {node.name}")
    return found


def riddles() -> Found:
    """Find docstrings that begin with a question word in place of a noun or a verb."""
    found: Found = defaultdict(list)
    for trees in (product(), own_tests()):
        for path, tree in trees.items():
            for line, text in docstrings(tree):
                if RIDDLE.match(text):
                    first = text.strip().splitlines()[0]
                    found[area(path)].append(f"{path}:{line} {first}")
    return found


def private_access() -> Found:
    """Find tests that use a private name of the product."""
    private = {
        name
        for _, node in walk((*Functions, ast.ClassDef, ast.Attribute, ast.Name), product())
        if (name := _name(node)).startswith("_") and not name.startswith("__")
    } - {
        "_replace",
        "_asdict",
        "_fields",
        "_exit",
        "_current_frames",
    }  # public: named tuples, os, sys
    found: Found = defaultdict(list)
    for path, tree in own_tests().items():
        own = {_name(n) for n in nodes_of((*Functions, ast.ClassDef), tree)}
        own |= {a.attr for a in _attributes(tree) if _is_self(a)}
        folder = path.rpartition("/")[0]
        chains = {
            a.lineno: ast.unparse(a)
            for a in _attributes(tree)
            if a.attr in private and a.attr not in own and not _is_self(a)
        }  # one finding for each line
        found[folder] += [f"{path}:{line} {chain}" for line, chain in sorted(chains.items())]
        for node in nodes_of(ast.ImportFrom, tree):
            if (node.module or "").startswith("nyala"):
                for alias in node.names:
                    if alias.name.startswith("_") and not alias.name.startswith("__"):
                        found[folder].append(f"{path}:{node.lineno} {node.module}.{alias.name}")
    return found


def tests_import_tests() -> Found:
    """Find tests that import from another test's file."""
    found: Found = defaultdict(list)
    for path, node in walk((ast.Import, ast.ImportFrom), own_tests()):
        imported = [a.name for a in node.names]
        if isinstance(node, ast.ImportFrom):
            imported = [f"{node.module}.{name}" for name in imported]
        for name in imported:
            if re.search(r"(^|\.)tests\.(.*\.)?test_", name):
                found[path.rpartition("/")[0]].append(f"{path}:{node.lineno} {name}")
    return found


RULES: dict[str, Callable[[], Found]] = {
    "large_folders": large_folders,
    "single_subclasses": single_subclasses,
    "repeated_names": repeated_names,
    "missing_args": missing_args,
    "riddles": riddles,
    "private_access": private_access,
    "tests_import_tests": tests_import_tests,
}


def _parameters(node: Any) -> int:
    args = node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return Counter(a.arg in ("self", "cls") for a in every)[False]


def _abstract(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(b).split("[")[0].split(".")[-1] for b in node.bases}
    marks = {
        ast.unparse(d).split(".")[-1]
        for n in node.body
        if isinstance(n, Functions)
        for d in n.decorator_list
    }
    return bool(bases & {"Protocol", "ABC", "NamedTuple", "TypedDict"}) or "abstractmethod" in marks


def _names() -> dict[tuple[str, str], tuple[str, str]]:
    """Return, for a name that a module imports, the module it comes from."""
    return {
        (module(path), alias.asname or alias.name): (node.module or "", alias.name)
        for path, node in walk(ast.ImportFrom, product())
        for alias in node.names
    }


def _resolve(
    names: dict[tuple[str, str], tuple[str, str]], key: tuple[str, str]
) -> tuple[str, str]:
    while key in names:
        key = names[key]
    return key


def _name(node: Any) -> str:
    for field in ("attr", "name", "id"):
        if isinstance(found := getattr(node, field, None), str):
            return found
    return ""


def _attributes(tree: ast.Module) -> Iterator[ast.Attribute]:
    return nodes_of(ast.Attribute, tree)


def _is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
