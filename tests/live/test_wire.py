"""What is on the wire, by the eyes of tshark and Scapy; and what outsiders may send."""

import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl
from scapy.contrib.roce import BTH
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgReader

import traffic.layers
from testbed._dataplane import Fabric

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Captures of both demos, live."""
    from tests.conftest import command_line

    folder = tmp_path_factory.mktemp("captures")
    found: dict[str, list[Path]] = {}
    for demo in ("incast", "pfc-storm"):
        subprocess.run([*command_line(), "demo", demo, "--out", str(folder / demo)], check=True, capture_output=True)
        found[demo] = sorted((folder / demo / "captures").glob("*.pcapng"))
    return found


def tshark(path: Path, *fields: str, display: str = "") -> list[list[str]]:
    command = ["tshark", "-r", str(path), "-T", "fields", "-E", "separator=;"]
    for field in fields:
        command += ["-e", field]
    if display:
        command += ["-Y", display]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split(";") for line in done.stdout.splitlines()]


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_dissects_every_packet(captures):
    kinds: Counter[str] = Counter()
    for path in (path for paths in captures.values() for path in paths):
        rows = tshark(path, "frame.protocols", "_ws.malformed", "_ws.expert.severity", "infiniband.bth.opcode")
        assert rows
        for protocols, malformed, _, opcode in rows:
            assert malformed == "", protocols
            if "macc" in protocols:
                kinds["pause"] += 1
            else:
                assert protocols.endswith("udp:infiniband") or "udp:infiniband" in protocols, protocols
                kinds[opcode] += 1
    # Writes first, middle and last, acknowledgements, CNPs (0x81 = 129), and pauses.
    assert {"6", "7", "8", "17", "129", "pause"} <= kinds.keys(), kinds


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_reads_pause_frames_and_fabric_time(captures):
    storm = next(p for p in captures["pfc-storm"] if p.stem == "h16-leaf4")
    rows = tshark(storm, "frame.time_relative", "macc.opcode", "macc.cbfc.pause_time.c3", display="macc")
    assert rows
    assert {row[1] for row in rows} == {"0x0101"}
    assert rows[0][2] == "65535"
    epochs = tshark(storm, "frame.time_epoch", "frame.interface_name", display="macc")
    assert float(epochs[0][0]) == pytest.approx(20e-6), "the storm begins at 20 us of fabric time"
    assert epochs[0][1].startswith("h16-eth0")


def test_scapy_agrees_with_every_icrc(captures):
    assert traffic.layers.CNP == 0x81
    checked: Counter[int] = Counter()
    pauses = 0
    for path in (path for paths in captures.values() for path in paths):
        with PcapNgReader(str(path)) as reader:
            for i, packet in enumerate(reader):
                if not packet.haslayer(UDP):
                    assert packet.haslayer(MACControlClassBasedFlowControl)
                    pauses += 1
                    continue
                bth = packet[BTH]
                # Scapy's CRC is plain Python: every control packet, and one data packet in eight.
                if bth.opcode == 0x07 and i % 8:
                    continue
                carried = bth.icrc
                bth.icrc = None
                again = Ether(bytes(packet))
                assert again[BTH].icrc == carried, (path.name, i)
                checked[bth.opcode] += 1
    assert {0x06, 0x07, 0x08, 0x11, 0x81} <= checked.keys()
    assert pauses > 0


# ---- Outsiders


class Pair:
    """A NIC of ours at one end of a veth, an outsider at the other."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        from testbed.emulation.network import bring_up, make_link, namespace_path

        self.holder = subprocess.Popen(["mnexec", "-n", "sleep", "300"])
        request.addfinalizer(self.holder.wait)
        request.addfinalizer(self.holder.kill)
        while Path(f"/proc/{self.holder.pid}/ns/net").stat().st_ino == Path("/proc/self/ns/net").stat().st_ino:
            pass
        from testbed.emulation.network import silence_ipv6

        silence_ipv6(self.holder.pid)
        make_link(self.holder.pid, "ours", None, self.holder.pid, "theirs", None)
        bring_up(self.holder.pid, ["ours", "theirs"])
        self.namespace = namespace_path(self.holder.pid)

    def send(self, frames: list[bytes]) -> None:
        import socket

        from testbed.emulation.network import in_namespace

        def work() -> None:
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as outsider:
                outsider.bind(("theirs", 0))
                for frame in frames:
                    outsider.send(frame)

        in_namespace(self.holder.pid, work)


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request)


def live_switch(pair: Pair) -> tuple[Any, int]:
    from testbed.fabric import switch_spec
    from testbed.scenario.schema import SwitchSection

    fabric = Fabric(True)
    node = fabric.add_switch(switch_spec(SwitchSection(), 1, 1, 8))
    fabric.add_port(node, 10**11)
    fabric.attach(node, 0, "ours", pair.namespace)
    return fabric, node


def run_until_taken(fabric: Any, count: int) -> None:
    for _ in range(500):
        fabric.run(budget_ms=20)
        if fabric.fidelity()["foreign_frames"] >= count:
            fabric.run(budget_ms=20)
            return
    raise AssertionError(fabric.fidelity())


def test_random_bytes_on_a_live_link_do_no_harm(pair):
    rng = random.Random(1)
    frames = [rng.randbytes(rng.randint(14, 1500)) for _ in range(800)]
    # Half of them claim to be IPv4 or pause frames, so that parsers are reached.
    for i in range(0, len(frames), 4):
        frames[i] = frames[i][:12] + b"\x08\x00" + frames[i][14:]
        frames[i + 1] = frames[i + 1][:12] + b"\x88\x08" + frames[i + 1][14:]
    fabric, node = live_switch(pair)
    pair.send(frames)
    run_until_taken(fabric, len(frames))
    counters = fabric.node_counters(node)
    assert counters["drops"]["malformed"] >= 300
    assert counters["rx_frames"] + counters["drops"]["malformed"] >= len(frames)
    assert fabric.conservation()["balanced"]


def test_random_bytes_at_a_live_nic_do_no_harm(pair):
    from traffic.flows import Endpoint, roce_template

    rng = random.Random(2)
    fabric = Fabric(True)
    nic = fabric.add_nic([2, 0, 0, 0, 0, 1], None)
    fabric.add_port(nic, 10**11)
    fabric.attach(nic, 0, "ours", pair.namespace)
    whole = roce_template(
        Endpoint("02:00:00:00:00:02", "10.0.0.2"),
        Endpoint("02:00:00:00:00:01", "10.0.0.1"),
        remote_qpn=17,
        udp_sport=49152,
        dscp=26,
    )
    frames = [rng.randbytes(rng.randint(14, 1500)) for _ in range(200)]
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(rng.randint(0, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        frames.append(bytes(damaged[: rng.randint(14, len(damaged))]))
    frames.append(whole)
    pair.send(frames)
    run_until_taken(fabric, len(frames))
    counters = fabric.node_counters(nic)
    assert counters["malformed"] > 100
    assert counters["icrc_errors"] > 0
    assert counters["unknown_qp"] >= 1
    assert counters["tx_packets"] == 0, "nothing of this is worth an answer"
    assert fabric.conservation()["balanced"]


def test_a_tagged_frame_arrives_with_its_tag(pair):
    fabric, node = live_switch(pair)
    tagged = bytes.fromhex("020000000001020000000002810060 07".replace(" ", "")) + b"\x88\xb5" + bytes(50)
    fabric.flow_add(node, 0, 1, 0, 1, [("vlan_vid", 0x1007, None), ("vlan_pcp", 3, None)], [("controller", 0)], None)
    pair.send([tagged])
    run_until_taken(fabric, 1)
    ((_, _, _, _, _, frame),) = fabric.take_packet_ins()
    assert bytes(frame) == tagged


def test_an_outsiders_pause_frame_is_obeyed(pair):
    from scapy.packet import Raw

    fabric, node = live_switch(pair)
    pause = Ether(src="02:00:00:00:00:09", dst="01:80:c2:00:00:01") / MACControlClassBasedFlowControl(
        c3_enabled=1, c3_pause_time=1000
    )
    frame = bytes(pause / Raw(bytes(60 - len(pause))))
    pair.send([frame])
    run_until_taken(fabric, 1)
    for _ in range(100):
        fabric.run(budget_ms=5)
    counters = fabric.port_counters(node, 0)
    assert counters["rx_pause"] == [0, 0, 0, 1, 0, 0, 0, 0]
    # 1000 quanta of 512 bits at 100 Gb/s.
    assert counters["paused_ps"] == [0, 0, 0, 1000 * 512 * 10, 0, 0, 0, 0]
