"""Clock, files, tasks and RPC come from `env`; broad excepts have a reason; every module is used."""

import ast
import re

from tests.tidy.source import own_tests, product, text_of, walk

BANNED = {  # call -> (replacement, packages under src/nyala where it is the real implementation)
    "time.time": ("env.clock.Clock", ("env",)),
    "time.time_ns": ("env.clock.Clock", ("env",)),
    "time.monotonic": ("env.clock.Clock", ("env",)),
    "time.monotonic_ns": ("env.clock.Clock", ("env",)),
    "time.sleep": ("env.tasks.Tasks.sleep_ms", ("env",)),
    "asyncio.sleep": ("env.tasks.Tasks.sleep_ms", ("env",)),
    "asyncio.wait": ("asyncio.gather (wait() orders by hash)", ()),
    "asyncio.as_completed": ("asyncio.gather (as_completed() orders by hash)", ()),
    "random.random": ("env.random", ("env",)),
    "random.randint": ("env.random", ("env",)),
    "random.choice": ("env.random", ("env",)),
    "uuid.uuid4": ("env.clock.random_id", ("env",)),
    "os.urandom": ("env.random", ("env",)),
    "os.fsync": ("env.files.Files", ("env",)),
    "os.rename": ("env.files.Files", ("env",)),
    "os.replace": ("env.files.Files", ("env",)),
    "datetime.now": ("env.clock.Clock", ()),
}
# Packages with users, processes, real files or Spark on one side, which no simulator runs.
EDGE = ("backup", "cli", "security", "spark", "testing", "web")


def test_clock_random_and_files_come_from_the_environment():
    found, attributes = [], {name.rpartition(".")[2] for name in BANNED}
    for path, node in walk(ast.Attribute, product()):
        package = path.split("/")[2]
        if node.attr not in attributes:  # unparsing takes much longer
            continue
        name = ast.unparse(node)
        replacement, packages = BANNED.get(name, ("", ()))
        if replacement and package not in packages and package not in EDGE:
            found.append(f"{path}:{node.lineno} {name}: use {replacement}")
    assert not found


def test_broad_excepts_have_their_reason():
    found = []
    for path, node in walk(ast.ExceptHandler, product()):
        if isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException"):
            lines = text_of(path).splitlines()
            near = "\n".join(lines[max(0, node.lineno - 3) : node.lineno + 3])
            if "#" not in near:
                found.append(f"{path}:{node.lineno}")
    assert not found


def test_dead_modules():
    """Each module is imported by another, or is an entry point."""
    entries = re.compile(
        r"__init__|__main__|cli/main|pyspark_nyala|spark/demo|proto/|testing/plugin"
    )
    imported = set()
    for trees in (product(), own_tests()):
        for path, node in walk((ast.Import, ast.ImportFrom), trees):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
                imported.update(f"{node.module}.{a.name}" for a in node.names)
            elif isinstance(node, ast.Import):
                imported.update(a.name for a in node.names)
            del path
    text = "\n".join(map(text_of, product()))
    modules = {p: p.removeprefix("src/").removesuffix(".py").replace("/", ".") for p in product()}
    dead = [
        p
        for p, m in modules.items()
        if not entries.search(p) and m not in imported and f'"{m}"' not in text
    ]
    assert not dead
