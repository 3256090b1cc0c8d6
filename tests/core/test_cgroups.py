"""Limits of containers and batch systems."""

from __future__ import annotations

import pytest

from wima.core import machine, machine as cgroups

MB = 2**20
STAT = "anon 5\nfile 9\n"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Write the files of a pretended system; they are named by their paths."""
    monkeypatch.setattr(cgroups, "OWN", tmp_path / "own")
    monkeypatch.setattr(cgroups, "GROUPS", tmp_path / "groups")

    def write(own: str, **files: str) -> None:
        (tmp_path / "own").write_text(own)
        for name, content in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return write


def test_without_control_groups_nothing_is_limited(system, tmp_path):
    assert cgroups.memory_left() == cgroups.cores_allowed() == float("inf")
    system("0::/\n")
    assert cgroups.memory_left() == cgroups.cores_allowed() == float("inf")
    assert machine.cores() >= 1


def test_a_container_leaves_its_limit_less_what_is_used_and_not_mere_cache(system):
    files = {
        "memory.max": f"{420 * MB}\n",
        "memory.high": "max\n",
        "memory.current": f"{100 * MB}\n",
        "memory.stat": f"{STAT}inactive_file {30 * MB}\n",
    }
    system("0::/\n", **files)
    assert cgroups.memory_left() == machine.memory_available() == 350 * MB
    system("0::/\n", **{**files, "memory.high": f"{300 * MB}\n"})
    assert cgroups.memory_left() == 230 * MB
    system("0::/\n", **{**files, "memory.current": f"{900 * MB}\n"})
    assert cgroups.memory_left() == 0


def test_the_tightest_of_nested_groups_counts(system):
    system(
        "0::/job/step\n",
        **{
            "job/memory.max": f"{100 * MB}\n",
            "job/memory.current": f"{60 * MB}\n",
            "job/cpu.max": "150000 100000\n",
            "job/step/memory.max": f"{90 * MB}\n",
            "job/step/memory.current": f"{10 * MB}\n",
            "job/step/cpu.max": "max 100000\n",
        },
    )
    assert cgroups.memory_left() == 40 * MB
    assert cgroups.cores_allowed() == 1.5


@pytest.mark.parametrize("inside", ["docker/12ab/", ""])  # seen from the host, or from within
def test_groups_of_version_1_limit_too(system, inside):
    system(
        "4:memory:/docker/12ab\n2:cpu,cpuacct:/docker/12ab\n0::/\n",
        **{
            f"memory/{inside}memory.limit_in_bytes": f"{200 * MB}\n",
            f"memory/{inside}memory.usage_in_bytes": f"{150 * MB}\n",
            f"memory/{inside}memory.stat": f"{STAT}inactive_file 1\ntotal_inactive_file {MB}\n",
            f"cpu/{inside}cpu.cfs_quota_us": "50000\n",
            f"cpu/{inside}cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroups.memory_left() == 51 * MB
    assert cgroups.cores_allowed() == 0.5 and machine.cores() == 1


def test_no_quota_of_version_1_is_no_limit(system):
    files = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    system("2:cpu:/\n", **files)
    assert cgroups.cores_allowed() == float("inf")
