"""Draw the floors of `.importlinter` into CONTRIBUTING.md, as a Mermaid diagram.

usage: house.py [--check]

`--check` writes nothing and ends with 1 if the picture there is another one.
"""

from __future__ import annotations

import ast
import configparser
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- house: drawn by .ci/house.py -->\n", "<!-- end of house -->\n"
FOLDERS = {
    "megacompile": ROOT / "megacompile",
    "megacompile_passes": ROOT / "passes" / "megacompile_passes",
}


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        print(f"{PAGE.name} lacks the lines {BEGIN.strip()} and {END.strip()}", file=sys.stderr)
        return 1
    drawn = before + BEGIN + diagram() + END + after
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(drawn, encoding="utf-8")
    elif drawn != page:
        print(f"the picture in {PAGE.name} is stale: run `make house`", file=sys.stderr)
        return 1
    return 0


def diagram() -> str:
    """Each floor may use all floors below it; an arrow leads to the next one."""
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter", encoding="utf-8")
    engine, library = floors(rules, "floors"), floors(rules, "passes")
    closed = rules["importlinter:contract:contract"]["forbidden_modules"].split()
    highest = next(
        room for floor in engine for room in floor if f"megacompile.{room}" not in closed
    )
    door = "a pass may use this floor and those below"
    lines = ["```mermaid", "flowchart TD"]
    lines += house("megacompile", "the engine", engine)
    lines += house("megacompile_passes", "the pass library", library)
    lines.append(f"  megacompile_passes -->|{door}| {node('megacompile', highest)}")
    return "\n".join([*lines, "```", ""])


def floors(rules: configparser.ConfigParser, contract: str) -> list[list[str]]:
    """Rooms by floor, top first."""
    layers = rules[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return [line.split(" | ") for line in layers if line.strip() and line != "__main__"]


def house(package: str, title: str, floors: list[list[str]]) -> list[str]:
    """One subgraph: a node for each room, an arrow from each floor to the next."""
    lines = [f'  subgraph {package}["{package}: {title}"]']
    for floor in floors:
        for room in floor:
            text = f"<b>{room}</b><br/>{purpose_of(package, room)}"
            lines.append(f'    {node(package, room)}["{text}"]')
    for upper, lower in pairwise(floors):
        lines += [f"    {node(package, a)} --> {node(package, b)}" for a in upper for b in lower]
    return [*lines, "  end"]


def node(package: str, room: str) -> str:
    """An id without dots, which Mermaid would read as a class."""
    return f"{package}_room_{room}"


def purpose_of(package: str, room: str) -> str:
    """The first sentence of what the room says of itself."""
    folder = FOLDERS[package]
    path = folder / room / "__init__.py"
    if not path.exists():
        path = folder / f"{room}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    return sentence.replace('"', "'")


if __name__ == "__main__":
    sys.exit(main())
