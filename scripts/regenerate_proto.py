"""Regenerate the committed protobuf modules and their types from the .proto files.

    ./run py scripts/regenerate_proto.py [OUTPUT_FOLDER]

Without a folder the modules go beside their sources. A test regenerates into an empty folder and
compares.
"""

import os
import shutil
import sys
from pathlib import Path

from grpc_tools import protoc

SOURCE = Path(__file__).resolve().parent.parent / "src"
PROTOS = tuple(
    f"nyala/wire/proto/{name}.proto"
    for name in ("flight", "nyala", "catalog", "reads", "journal", "ram", "transactions", "access")
)


def regenerate(target: Path) -> list[Path]:
    """Generate every module below `target` and return their paths, relative to it.

    Raises:
        RuntimeError: protoc or its type plug-in failed; its message is on stderr.
    """
    beside = str(Path(sys.executable).parent)  # the plug-in is installed beside the interpreter
    plugin = shutil.which("protoc-gen-mypy", path=os.pathsep.join([beside, os.environ["PATH"]]))
    status = protoc.main(
        [
            "protoc",
            f"-I{SOURCE}",
            f"--plugin=protoc-gen-mypy={plugin}",
            f"--python_out={target}",
            f"--mypy_out=quiet:{target}",
            *PROTOS,
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")
    stems = [proto.removesuffix(".proto") for proto in PROTOS]
    return [Path(f"{stem}_pb2{suffix}") for stem in stems for suffix in (".py", ".pyi")]


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE
    print("\n".join(str(path) for path in regenerate(folder)))
