"""Checks that a type checker knows the type of every public name of `import quorate`.

``make check`` runs this. It calls ``pyright --verifytypes``, which checks packages that are marked
as typed. The installed package is a link to this tree, whose folders are links in turn, and pyright
does not follow links. So pyright gets a copy without links, by ``PYTHONPATH``. Only its results for
public names count; ``pyright`` itself checks the inner modules.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import quorate

PACKAGE: Final = Path(quorate.__file__).parent
LEFT_OUT: Final = (
    "cli",
    "demo",
    "torture",
    "pipeline",
    "simulation",
    "histories",
    "recordings",
    "web",
    "*.so",
    "__py*",
)
"""Folders that no public name needs; with them pyright takes twice as long."""


def public_names() -> set[str]:
    """Return where each public name is defined, as pyright writes it: quorate.embed.Node."""
    names: list[str] = vars(quorate)["__all__"]
    values = [getattr(quorate, name) for name in names if name != "__version__"]
    return {f"{value.__module__}.{value.__qualname__}" for value in values}


def ask_pyright(folder: Path) -> list[dict[str, Any]]:
    """Return pyright's result for each symbol, from a copy of the package."""
    shutil.copytree(PACKAGE, folder / "quorate", ignore=shutil.ignore_patterns(*LEFT_OUT))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    command += ["--verifytypes", "quorate", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(
        command,
        cwd=folder,  # outside this tree, whose settings and folders it would use
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        check=False,  # it fails for inner modules
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    return found


def main() -> int:
    """Print each public symbol with an unknown type; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        symbols = ask_pyright(Path(folder))
    names = public_names()
    public = [one for one in symbols if _is_of(one["name"], names)]
    seen = {one["name"] for one in public}
    wrong = [one for one in public if not one["isTypeKnown"] or one["isTypeAmbiguous"]]
    for one in wrong:
        reasons = "; ".join(each["message"].replace("\n", " ") for each in one["diagnostics"])
        sys.stdout.write(f"{one['name']}: {reasons or 'its type is not known'}\n")
    for name in sorted(names - seen):
        sys.stdout.write(f"{name}: pyright does not know it\n")
    sys.stdout.write(f"{len(public) - len(wrong)} of {len(public)} public types are known\n")
    return int(bool(wrong or names - seen))


def _is_of(symbol: str, names: set[str]) -> bool:
    """Return whether a symbol is a public name, or an attribute of one."""
    return any(symbol == name or symbol.startswith(f"{name}.") for name in names)


if __name__ == "__main__":
    sys.exit(main())
