"""Finding and choosing devices."""

from __future__ import annotations

import ast
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from clgraft import core
from clgraft.core import DeviceError
from clgraft.core.runtime import devices, toolchains
from clgraft.core.runtime.toolchains import intel
from tests.logs import logged


def test_what_is_said_of_devices():
    found = devices.available()
    assert found
    for info in found:
        assert info.compute_units >= 1 and info.local_memory >= 16384 and info.global_memory > 1 << 28
        assert info.vector_width in (1, 2, 4, 8, 16)
        assert info.host_access in ("raw_pointer", "use_host_ptr", "staged")
        assert info.is_cpu == (info.device_class == "cpu")


def test_the_largest_cache_is_the_systems_where_a_driver_reports_a_smaller_one(tmp_path):
    assert devices.largest_cache(tmp_path / "missing") == 0
    for index, text in enumerate(("48K\n", "2M\n", "", "17", "many\n")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(text, encoding="ascii")
    assert devices.largest_cache(tmp_path) == 2 * 2**20
    for info in devices.available():
        if info.is_cpu:
            assert info.cache_bytes >= devices.largest_cache()


@pytest.mark.parametrize(
    ("cache_mib", "units", "kept_mib"),
    [(0, 2, 16), (32, 2, 16), (48, 2, 24), (260, 2, 32), (260, 16, 130), (64, 1, 16)],
)
def test_what_the_caches_keep_has_bounds(cache_mib, units, kept_mib):
    """Drivers may report less than there is, and a machine of few cores the cache of a processor that has many."""
    info = replace(devices.available()[0], cache_bytes=cache_mib * 2**20, compute_units=units)
    assert info.kept_in_caches == kept_mib * 2**20


def test_every_device_can_be_named_in_every_way():
    for info in devices.available():
        assert devices.describe(devices.select(info.selector)) == info
        assert devices.describe(devices.select(info.platform.upper())).platform == info.platform
        assert devices.describe(devices.select(info.name[:10].lower())).name.lower().find(info.name[:10].lower()) >= 0
        kind = "cpu" if info.is_cpu else "gpu"
        assert getattr(devices.describe(devices.select(kind)), f"is_{kind}")


def test_the_environment_chooses(monkeypatch):
    for info in devices.available():
        monkeypatch.setenv("CLGRAFT_DEVICE", info.selector)
        assert devices.describe(devices.select()) == info
        assert devices.describe(devices.select(None)) == info


def test_pyopencls_variable_chooses_where_ours_is_unset(monkeypatch):
    monkeypatch.delenv("CLGRAFT_DEVICE", raising=False)
    for info in devices.available():
        number, device = info.selector.split(":")
        words = [info.selector, f"{number}:{info.name[:12].upper()}", f"{info.platform.lower()}:{device}"]
        for word in words if device != "0" else [number, *words]:
            monkeypatch.setenv("PYOPENCL_CTX", word)
            assert devices.describe(devices.select()) == info
            unfound = {"has_wgmma": False, "has_bulk_copies": False, "has_pair_products": False}  # found by contexts
            assert replace(core.context().device, **unfound) == info
        first = devices.available()[0]
        assert devices.describe(devices.select(first.selector)) == first  # an argument comes before every variable
    monkeypatch.setenv("CLGRAFT_DEVICE", devices.available()[0].selector)
    monkeypatch.setenv("PYOPENCL_CTX", devices.available()[-1].selector)
    assert devices.describe(devices.select()) == devices.available()[0]


@pytest.mark.parametrize("wrong", ["99", "0:99", "no such platform", "0:no such device", "0:0:0"])
def test_a_wrong_pyopencl_variable_is_named(monkeypatch, wrong):
    monkeypatch.delenv("CLGRAFT_DEVICE", raising=False)
    monkeypatch.setenv("PYOPENCL_CTX", wrong)
    with pytest.raises(DeviceError, match=f"got 'PYOPENCL_CTX={wrong}', expected"):
        devices.select()


@pytest.mark.parametrize("wrong", ["no such device", "99:0", "0:99", "0", ":"])
def test_wrong_choice_lists_what_there_is(wrong):
    with pytest.raises(DeviceError) as caught:
        devices.select(wrong)
    text = str(caught.value)
    assert repr(wrong) in text
    for info in devices.available():
        assert info.name in text and info.selector in text


@pytest.mark.parametrize(("word", "kind"), [("gpu", "is_gpu"), ("cpu", "is_cpu")])
def test_no_device_of_a_kind_says_so_and_what_there_is(monkeypatch, word, kind):
    others = [device for device in devices._all() if not getattr(devices.describe(device), kind)]
    for found in ([], others):
        monkeypatch.setattr(devices, "_all", lambda found=found: found)
        with pytest.raises(DeviceError) as caught:
            devices.select(word)
        first, *rest = str(caught.value).splitlines()
        assert first.startswith(f"[device] got {word!r}, but no {word.upper()} was found")
        assert len(rest) >= len(found) and all(str(devices.describe(device)) in str(caught.value) for device in found)
        assert ("nor any other OpenCL device" in first) == (not found)


def test_a_misspelt_name_has_the_nearest():
    name = devices.available()[0].name.split()[0].lower()
    with pytest.raises(DeviceError, match=f"nearest: .*{re.escape(name)}"):
        devices.select(f"{name}x")
    with pytest.raises(DeviceError, match=r"nearest: .*gpu"):
        devices.select("gpuu")


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def test_runtime_from_pip_is_found_without_environment_variables():
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("intel-opencl-rt")
    except PackageNotFoundError:
        pytest.skip("needs Intel's runtime from pip")
    done = run_python(
        "from clgraft.core.runtime import devices; print([d.platform for d in devices.available()])", CLGRAFT_DEVICE=""
    )
    assert "Intel" in done.stdout, done.stderr


@pytest.mark.parametrize("failing", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["mkdir", "mkstemp"])
def test_a_cache_that_cannot_be_written_does_not_hide_the_runtime_from_pip(tmp_path, monkeypatch, failing, call):
    """Neither the folder of drivers nor a file in it can be made there, so that both lie in a temporary folder."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("CLGRAFT_CACHE", str(cache))
    monkeypatch.setattr(intel, "problems", [])
    module = Path if call == "mkdir" else tempfile
    real = getattr(module, call)

    def refused(*arguments, **options):
        where = str(options.get("dir", arguments[0] if arguments else ""))
        if where.startswith(f"{cache}/vendors-"):
            raise OSError(failing, os.strerror(failing))
        return real(*arguments, **options)

    monkeypatch.setattr(module, call, refused)
    driver = tmp_path / "libintelocl.so"
    with logged(r"^\[cache\] .*/cache cannot be written: intel-opencl-rt is listed in a temporary folder$") as texts:
        folder = intel.vendors_folder(driver)
        again = intel.vendors_folder(driver)
    assert len(texts) == 1 and not intel.problems
    assert folder != again and cache not in folder.parents
    assert (folder / "clgraft-intel-cpu.icd").read_text() == f"{driver}\n"
    assert folder.stat().st_mode & 0o777 == 0o700


LISTED = """
import os
import re
os.environ.pop("OCL_ICD_VENDORS", None)  # of the tests' own process
from clgraft.core.runtime import devices
print([d.platform for d in devices.available()], os.environ["OCL_ICD_VENDORS"])
"""


@pytest.mark.skipif(not intel.packaged_driver(), reason="needs Intel's runtime from pip")
def test_the_runtime_from_pip_works_with_a_damaged_cache_and_leaves_nothing_behind(tmp_path):
    """A file stands where the folder of drivers should be."""
    environment = {"CLGRAFT_CACHE": str(tmp_path / "cache"), "CLGRAFT_DEVICE": "", "TMPDIR": str(tmp_path)}
    before = run_python(LISTED, **environment)
    listed = Path(before.stdout.split()[-1])
    assert listed.parent == tmp_path / "cache", before.stderr
    shutil.rmtree(listed)
    listed.write_text("")
    done = run_python(LISTED, **environment)
    assert "Intel" in done.stdout, done.stderr
    temporary = Path(done.stdout.split()[-1])
    assert temporary.parent == tmp_path and not temporary.exists()
    assert done.stderr.count("[cache]") == 1


def test_a_users_own_driver_list_is_left_alone(tmp_path):
    done = run_python(
        "import os; from clgraft.core.runtime.devices import available as a; print(a(), os.environ['OCL_ICD_VENDORS'])",
        OCL_ICD_VENDORS=str(tmp_path),
        CLGRAFT_DEVICE="",
    )
    assert done.stdout.strip() == f"[] {tmp_path}", done.stdout + done.stderr


def test_no_device_at_all_says_what_to_do(tmp_path):
    done = run_python("from clgraft import core; core.context()", OCL_ICD_VENDORS=str(tmp_path), CLGRAFT_DEVICE="")
    assert done.returncode and "pip install clgraft[cpu]" in done.stderr


def test_a_broken_driver_does_not_hide_the_others(tmp_path, monkeypatch):
    (tmp_path / "broken.icd").write_text("/no/such/library.so\n")
    program = (
        "import pathlib; from clgraft.core.runtime import devices\n"
        "from clgraft.core.runtime.toolchains import intel\n"
        f"intel.SYSTEM_VENDORS = pathlib.Path({str(tmp_path)!r})\n"
        "print(len(devices.available()))"
    )
    done = run_python(program, CLGRAFT_DEVICE="", CLGRAFT_CACHE=str(tmp_path / "cache"))
    assert int(done.stdout) >= 1, done.stderr


PINNED = """
import os, sys
if sys.argv[1] == "one":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from clgraft.core.runtime import toolchains
toolchains.prepare()
print({name: os.environ.get(name) for name in toolchains.pinning()})
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_threads_are_pinned_unless_somebody_chose_otherwise():
    clean = {name: value for name, value in os.environ.items() if name not in toolchains.pinning()}

    def found(word, **more):
        command = [sys.executable, "-c", PINNED, word]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**clean, **more})
        return ast.literal_eval(done.stdout)

    everywhere = os.sched_getaffinity(0) == set(range(os.cpu_count()))
    assert found("all") == (toolchains.pinning() if everywhere else dict.fromkeys(toolchains.pinning()))
    assert found("one") == dict.fromkeys(toolchains.pinning())
    assert found("all", POCL_AFFINITY="0")["POCL_AFFINITY"] == "0"
