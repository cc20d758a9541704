"""The command line: exit codes, what goes where, what is refused."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

SMALL = """\
name: small
topology: {kind: leaf-spine, spines: 1, leaves: 1, hosts_per_leaf: 2, host_rate: 100Gbps}
traffic: [{pattern: pairwise, pairs: [[h1, h2]], size: 10KB, label: only}]
captures: [h1-leaf1]
"""

COLUMNS = {
    "flows": "src dst qp bytes start_ns end_ns fct_ns ideal_fct_ns slowdown_ratio "
    "retransmitted_packets ecn_marked_packets status",
    "ports": "time_ns node port peer priority queue_bytes ingress_bytes tx_bytes rx_bytes ecn_marked paused credits",
    "events": "time_ns kind node port priority flow detail",
    "rates": "time_ns rate_bps alpha",
    "totals": "node port peer priority tx_frames tx_bytes rx_frames rx_bytes ecn_marked paused_ns ingress_max_bytes",
    "histograms": "node port peer priority what from to frames",
}


def test_a_run_leaves_the_whole_folder(cli, scenario, tmp_path):
    done = cli("run", scenario(SMALL), "--engine", "simulate", "--out", "out")
    assert done.code == 0, done.err
    out = tmp_path / "out"
    found = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert found == {
        *(f"{name}.parquet" for name in COLUMNS),
        *(f"plots/{name}.png" for name in ("queues", "rates", "pauses", "fct")),
        "scenario.yaml",
        "summary.json",
        "log.txt",
        "captures/h1-leaf1.pcapng",
    }
    for name, columns in COLUMNS.items():
        assert set(columns.split()) <= set(pq.read_schema(out / f"{name}.parquet").names)
    assert "results: out/" in (out / "log.txt").read_text() or "results" in done.out
    assert cli("run", out / "scenario.yaml", "--engine", "simulate", "--out", "again").code == 0
    assert (tmp_path / "again" / "flows.parquet").read_bytes() == (out / "flows.parquet").read_bytes()


def test_json_is_alone_on_stdout(cli, scenario):
    done = cli("run", scenario(SMALL), "--engine", "simulate", "--json")
    summary = json.loads(done.out)
    assert {"name", "engine", "seed", "complete", "valid", "slowdown", "fabric_time_ns", "wall_time_s"} <= summary.keys()
    assert set(summary["switches"]["drops"]) == {"buffer", "headroom", "no_route", "ttl", "watchdog", "link_down", "malformed"}
    assert summary["flows"]["labels"]["only"]["completed"] == 1
    assert "messages: 1 of 1 completed" in done.err


def test_an_existing_folder_is_refused_unless_empty(cli, scenario, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    done = cli("run", scenario(SMALL), "--engine", "simulate", "--out", "full")
    assert done.code == 2
    assert "not empty" in done.err
    assert (tmp_path / "full" / "mine").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert cli("run", scenario(SMALL), "--engine", "simulate", "--out", "empty").code == 0
    assert cli("run", scenario(SMALL), "--engine", "simulate", "--out", scenario("x", "file")).code == 2


def test_a_bad_scenario_starts_nothing(cli, scenario, tmp_path):
    done = cli("run", scenario(SMALL.replace("size: 10KB", "size: 10Gbps")), "--engine", "simulate")
    assert done.code == 2
    assert "scenario.yaml:3: traffic.0.size: 'Gbps' is not a unit of a size" in done.err
    assert not (tmp_path / "runs").exists()


def test_an_expectation_that_fails_is_exit_code_1(cli, scenario, tmp_path):
    text = SMALL + "expect: [{metric: nics.cnp_sent, above: 0, says: CNPs are sent}, {metric: no.such, equals: 1, says: x}]\n"
    done = cli("run", scenario(text), "--engine", "simulate", "--out", "out")
    assert done.code == 1
    assert "FAIL  CNPs are sent (nics.cnp_sent is 0, expected > 0)" in done.out
    assert "summary.json has no no.such" in done.out
    assert (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "nothing"], "there is no demo 'nothing': demos are"),
        (["run", "nothing.yaml", "--engine", "simulate"], "nothing.yaml: cannot be read"),
        (["run", "x.yaml", "--engine", "magic"], "magic"),
        (["topo", "show", "torus"], "is neither a kind of topology"),
        (["topo", "show", "fat-tree", "--k", "5"], "--k: Input should be a multiple of 2"),
        (["topo", "show", "fat-tree", "--spines", "5"], "--spines: fat-tree does not take it"),
        (["fly"], "fly"),
    ],
)
def test_wrong_usage_is_exit_code_2(cli, words, message):
    done = cli(*words)
    assert done.code == 2
    assert message in done.err


def test_demos_are_listed(cli):
    out = cli("demo").out
    assert "incast" in out
    assert "pfc-storm" in out


def test_topologies_are_shown(cli, tmp_path):
    done = cli("topo", "show", "rail", "--nodes", "4", "--gpus-per-node", "8", "--png", "t.png", "--json")
    assert json.loads(done.out.split("drawn")[0])["nics"] == 32
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    assert "edge1-1" in cli("topo", "show", "fat-tree", "--k", "4").out


def test_help_has_examples(cli):
    for command in ("run", "demo", "up"):
        assert "Example:" in cli(command, "--help").out


def test_two_runs_of_one_second_both_keep_their_results(tmp_path, monkeypatch):
    from testbed.results import RunFolder

    monkeypatch.chdir(tmp_path)
    with RunFolder(None, "same") as one, RunFolder(None, "same") as two:
        two.final = one.final
        kept = []
        for folder in (one, two):
            folder.write_text("summary.json", "{}")
            kept.append(folder.commit())
    assert kept[0] != kept[1]
    assert all((path / "summary.json").exists() for path in kept)


def test_the_current_folder_can_be_the_run_folder(cli, scenario, tmp_path):
    path = scenario(SMALL)
    (tmp_path / "here").mkdir()
    command = [sys.executable, "-m", "testbed", "run", str(path), "--engine", "simulate", "--out", "."]
    done = subprocess.run(command, cwd=tmp_path / "here", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "summary.json").exists()


def test_a_ratio_without_end_is_refused(cli, scenario):
    done = cli("run", scenario(SMALL), "--engine", "simulate", "--set", "switch.pfc.alpha=.inf")
    assert done.code == 2
    assert "neither a number nor a fraction" in done.err


def test_a_profile_above_the_buffer_is_told(cli, scenario):
    done = cli("run", scenario(SMALL), "--engine", "simulate", "--set", "switch.buffer=1MB")
    assert done.code == 2
    assert "at 100Gbps, kmax of profile hpcc 1600KB is above the buffer of 1MB" in done.err


def test_benchmarks_give_ratios(cli):
    done = cli("bench", "simulate", "--json")
    figures = json.loads(done.out)
    assert [f["what"] for f in figures] == [f"fat tree k={k}, permutation" for k in (4, 8, 16)]
    assert figures[0]["ratio"] == 1
    assert all(f["value"] > 0 for f in figures)
    assert cli("bench", "nothing").code == 2


DETOURS = """\
name: detours
topology: {kind: fat-tree, k: 4, host_rate: 100Gbps, fabric_rate: 100Gbps}
traffic: [{pattern: permutation, size: 100KB}]
nic: {timeout: 8}
faults:
  - {kind: link-down, link: edge1-1-agg1-1, at: 1us}
  - {kind: link-down, link: edge1-2-agg1-2, at: 1us}
"""


@pytest.mark.parametrize("engine", ["simulate", pytest.param("emulate", marks=pytest.mark.live)])
def test_routes_that_allow_a_deadlock_are_told(cli, scenario, engine):
    done = cli("run", scenario(DETOURS), "--engine", engine)
    assert done.code == 0, done.err
    assert "warning: routes allow a deadlock: agg2-1:eth1 -> edge2-1:eth4" in done.out
    quiet = cli("run", scenario(DETOURS), "--engine", engine, "--set", "switch.pfc.enabled=false")
    assert "deadlock" not in quiet.out
    assert "deadlock" not in cli("demo", "incast", "--engine", engine).out
