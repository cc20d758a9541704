"""Scenario files: what is read, and the very words of what is refused."""

import pytest

from testbed.scenario import ScenarioError, dump, load, make_plan
from testbed.scenario.schema import Scenario

GOOD = """\
name: good
topology:
  kind: leaf-spine
  host_rate: 100Gbps
switch:
  buffer: 4MB
traffic:
  - pattern: incast
    senders: [h1, h2]
    receiver: h9
    size: 1MB
"""

BAD = [
    # (what is changed, by what, the message)
    ("  buffer: 4MB", "  bufer: 4MB", "{f}:6: switch.bufer: unknown key; did you mean buffer?"),
    ("    size: 1MB", "    size: 1MB\n    sizes: 2", "{f}:12: traffic.0.sizes: unknown key; did you mean size?"),
    (
        "100Gbps",
        "100KB",
        "{f}:4: topology.host_rate: 'KB' is not a unit of a rate: use one of Tbps, Gbps, Mbps, Kbps, bps, as in 400Gbps",
    ),
    (
        "1MB",
        "1000000",
        "{f}:11: traffic.0.size: 1000000 is not a size: write a number and a unit, as in 64KB (GB, MB, KB, GiB, MiB, KiB, B)",
    ),
    ("receiver: h9", "receiver: h99", "{f}:10: traffic.0.receiver: there is no host 'h99' here: hosts are h1 to h16"),
    ("[h1, h2]", "[h1, h9]", "{f}:8: traffic.0: h9 cannot send to itself: name another host"),
    (
        "  host_rate: 100Gbps",
        "  leaves: 9900",
        "{f}:2: topology: 49502 NICs and switches, but the address plan has 49151 unicast LIDs: make the topology smaller",
    ),
    (
        "  buffer: 4MB",
        "  buffer: 4MB\n  pfc: {xoff: 5MB}",
        "{f}:7: switch.pfc.xoff: threshold 5MB is above the buffer of 4MB: lower it, or enlarge switch.buffer",
    ),
    (
        "  buffer: 4MB",
        "  buffer: 4MB\n  ecn: {kmax: 5MB}",
        "{f}:7: switch.ecn.kmax: threshold 5MB is above the buffer of 4MB: lower it, or enlarge switch.buffer",
    ),
    (
        "  buffer: 4MB",
        "  buffer: 4MB\n  ecn: {kmin: 3MB, kmax: 1MB}",
        "Kmin (3000000 B) is above Kmax (1000000 B): exchange them",
    ),
    ("  buffer: 4MB", "  buffer: 40KB", "{f}:6: switch.buffer: headroom and reserve of spine1's ports take"),
    ("kind: leaf-spine", "kind: torus", "{f}:2: topology: input tag 'torus'"),
    ("name: good", "name: good\nname: again", "{f}:2: not valid YAML: found duplicate key"),
    ("  buffer: 4MB", "  buffer: *x", "{f}:6: YAML aliases (*name) are not allowed: write the value out"),
    ("name: good\n", "", "{f}: name: is missing, and has no default: add it"),
    ("traffic:", "captures: [h1-spine1]\ntraffic:", "{f}:7: captures.0: there is no link 'h1-spine1' here: write it as in"),
    (
        "traffic:",
        "faults: [{kind: link-down, link: leaf1-spine1, at: 5us, up_at: 4us}]\ntraffic:",
        "{f}:7: faults.0.up_at: is not after at",
    ),
    ("traffic:", "expect: [{metric: a.b, says: x}]\ntraffic:", "{f}:7: expect.0: needs exactly one of equals, above, below"),
]


def messages(path, *overrides):
    with pytest.raises(ScenarioError) as caught:
        make_plan(*load(path, overrides))
    return str(caught.value)


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[m.split(": ", 1)[1][:40] for _, _, m in BAD])
def test_bad_input_is_told_with_file_and_line(scenario, old, new, message):
    assert GOOD.count(old) == 1
    path = scenario(GOOD.replace(old, new))
    assert message.format(f=path) in messages(path)


def test_every_problem_is_reported_at_once(scenario):
    path = scenario(GOOD.replace("buffer: 4MB", "bufer: 4MB").replace("1MB", "1m"))
    assert len(messages(path).splitlines()) == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("switch.pfc.enabeld=false", "--set switch.pfc.enabeld=false: switch.pfc.enabeld: unknown key; did you mean enabled?"),
        ("traffic.3.size=1MB", "--set traffic.3.size=1MB: traffic.3 is not there to be set"),
        ("traffic", "--set traffic: write --set key.path=value, as in --set switch.pfc.enabled=false"),
        ("name.x=1", "--set name.x=1: name holds a plain value, not keys"),
        (
            "switch.pfc.alpha=1/0",
            "--set switch.pfc.alpha=1/0: switch.pfc.alpha: '1/0' is neither a number nor a fraction, as in 1/8",
        ),
    ],
)
def test_bad_overrides_name_themselves(scenario, override, message):
    assert message in messages(scenario(GOOD), override)


def test_hostile_files_are_refused(scenario, tmp_path):
    assert "nested deeper" in messages(scenario("a: " + "[" * 5000 + "]" * 5000))
    assert "a scenario is a mapping" in messages(scenario("- 1"))
    assert "not valid YAML" in messages(scenario("a: [1"))
    assert "not valid YAML" in messages(scenario("a: \x00"))
    assert "cannot be read" in messages(tmp_path / "nothing.yaml")
    assert "cannot be read" in messages(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in messages(binary)
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (5 << 20))
    assert "larger than" in messages(big)


def test_what_is_written_back_is_the_same_scenario(scenario):
    first, _ = load(scenario(GOOD), ["switch.pfc.alpha=1/16", "run.slowdown=1000"])
    text = dump(first)
    second, _ = load(scenario(text, "again.yaml"))
    assert second == first
    assert "host_rate: 100Gbps" in text
    assert "delay: 600ns" in text


def test_defaults_are_the_documented_ones():
    scenario = Scenario.model_validate({"name": "x", "topology": {"kind": "leaf-spine"}})
    assert scenario.switch.pfc.alpha == 1 / 8
    assert scenario.nic.timeout == 14
    assert str(scenario.control.reaction) == "50us"
