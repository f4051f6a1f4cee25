"""The command `clgraft cache`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import Any

from clgraft.core import settings
from clgraft.core.runtime import cache_limit, program_cache, toolchains
from clgraft.core.runtime.toolchains import DriverCache
from clgraft.core.tuning import database
from clgraft.plugins.command_line import terminal


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    cache = commands.add_parser(
        "cache",
        help="show or clear the compiled programs that are kept on disk",
        description="Show where compiled programs are kept, how many there are and their size for each device. "
        f"CLGRAFT_CACHE names the folder (off: no cache), {settings.CACHE_LIMIT.name} limits its size (default: 512M; "
        "the programs that were used least recently go first).",
    )
    names = "".join(f", with {each.name}'s where its folder is below clgraft's" for each in toolchains.caches())
    clear = f"remove the programs{names}; tuning results stay"
    cache.add_argument("--clear", action="store_true", help=clear)
    cache.add_argument("--json", action="store_true", help="print JSON")
    cache.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show or clear the cache."""
    kept = toolchains.caches()
    for each in kept:
        each.choose()
    found = gather()
    if options.clear:
        folder = program_cache.folder()
        count, size = cache_limit.clear(folder) if folder else (0, 0)
        of_drivers = {each.key: dict(zip(("programs", "bytes"), each.clear())) for each in kept}
        found = {**gather(), "removed": {"programs": count, "bytes": size, **of_drivers}}
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    if found["folder"] is None:
        print("there is no cache: programs are compiled anew in every process")
        return 0
    if options.clear:
        of_all = [(found["removed"], ""), *((found["removed"][each.key], f" of {each.name}") for each in kept)]
        for removed, of in of_all:
            print(f"removed {terminal.plural(removed['programs'], 'program')}{of}, {terminal.nbytes(removed['bytes'])}")
    limit = "no limit" if found["limit"] is None else f"limit {terminal.nbytes(found['limit'])}"
    size = terminal.nbytes(found["bytes"])
    print(f"{found['folder']}: {terminal.plural(found['programs'], 'program')}, {size} ({limit})")
    if found["devices"]:
        rows = [[row["device"], str(row["programs"]), terminal.nbytes(row["bytes"])] for row in found["devices"]]
        terminal.table(["device", "programs", "size"], rows, sys.stdout, [terminal.LEFT] + 2 * [terminal.RIGHT])
    for each in kept:
        own = found[each.key]
        count_text, size = terminal.plural(own["programs"], "program"), terminal.nbytes(own["bytes"])
        print(f"{each.name}'s {own['folder']}: {count_text}, {size}")
        if options.clear and not own["own"]:
            print(f"{each.name}'s folder is not clgraft's alone, so it is left as it is: remove it to clear it")
    if found["tuning"]:
        print(f"tuning results: {found['tuning']['file']}, {terminal.nbytes(found['tuning']['bytes'])}")
    return 0


def gather() -> dict[str, Any]:
    """Return what the cache holds, for JSON."""
    folder = program_cache.folder()
    files, sizes = Counter[str](), Counter[str]()
    for entry in cache_limit.entries(folder) if folder else ():
        key = program_cache.key_in(entry.path)
        device = f"{key['platform'][0]} / {key['device'][0]}" if key else "other files"
        if key and "kept_in" in key:
            device += ", notes on the driver's own cache"
        if key and "recipe" in key:
            device += ", plans of graphs"
        files[device] += 1
        sizes[device] += entry.nbytes
    results = database.location()
    tuning = {"file": str(results), "bytes": results.stat().st_size} if results and results.is_file() else None
    return {
        "folder": str(folder) if folder else None,
        "programs": sum(files.values()),
        "bytes": sum(sizes.values()),
        "limit": cache_limit.limit(),
        "devices": [
            {"device": device, "programs": files[device], "bytes": size} for device, size in sizes.most_common()
        ],
        **{each.key: _kept_by_driver(each) for each in toolchains.caches()},
        "tuning": tuning,
    }


def _kept_by_driver(cache: DriverCache) -> dict[str, Any]:
    """Return what a driver's own cache holds, for JSON."""
    folder = cache.folder()
    programs = cache.programs(folder)
    return {
        "folder": str(folder),
        "own": cache.is_own(),
        "programs": len(programs),
        "bytes": sum(entry.nbytes for entry in programs),
    }
