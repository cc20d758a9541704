"""`testbed up`, and a Mininet script of one's own."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.live

FABRIC = """\
name: hands-on
topology: {kind: leaf-spine, spines: 2, leaves: 2, hosts_per_leaf: 2, host_rate: 100Gbps, fabric_rate: 100Gbps}
"""


def test_hosts_reach_each_other_by_their_own_stacks(cli, scenario):
    commands = "h1 ping -c 5 -i 0.2 h3\npingall\nh3 iperf3 -s -1 -D\nh1 sleep 1\nh1 iperf3 -c 10.0.0.3 -t 2 -f m\nexit\n"
    done = cli("up", scenario(FABRIC), stdin=commands, timeout_s=120)
    assert done.code == 0, done.err
    assert "5 received, 0% packet loss" in done.out + done.err
    assert "0% dropped (12/12 received)" in done.out + done.err
    text = done.out + done.err
    # No ping is quicker than the path: four links each way at 600 ns and 98 + 24 bytes, a thousand times slower.
    fastest_ms = float(re.search(r"rtt min/avg/max/mdev = ([0-9.]+)/", text)[1])
    assert fastest_ms >= 2 * 4 * (600 + 122 * 0.08) / 1000
    # TCP cannot be faster than the link: 100 Gb/s a thousand times slower.
    rate = float(re.search(r"([0-9.]+) Mbits/sec +receiver", text)[1])
    assert 10 < rate <= 100
    assert "DUP" not in text


def test_the_fabrics_own_commands(cli, scenario):
    commands = (
        "queues\npause\nfault storm h1 3 300us\nh1 sleep 0.6\npause\ncounters leaf1\ncounters nobody\n"
        "fault down leaf1-spine1\nh1 sleep 0.5\nh1 ping -c 2 -i 0.2 h3\n"
        "fault up leaf1-spine1\nh1 sleep 0.5\nh1 ping -c 2 -i 0.2 h3\n"
        "fault storm h1\nfault down nowhere\nexit\n"
    )
    done = cli("up", scenario(FABRIC), stdin=commands, timeout_s=120)
    text = done.out + done.err
    assert done.code == 0, text
    assert "every queue is empty" in text
    assert "nobody has paused anybody" in text
    assert re.search(r"leaf1:eth1 to h1, priority 3: sent 0, received [1-9]", text)
    assert "rx_frames:" in text
    assert "usage: counters NODE" in text
    assert text.count("2 received, 0% packet loss") == 2
    assert "usage: fault storm" in text
    assert "0 links are called nowhere" in text


def test_links_are_broken_and_mended_by_hand(cli, scenario):
    commands = (
        "h1 ping -c 2 -i 0.2 h2\nfault delay h1-leaf1 50us\nh1 ping -c 2 -i 0.3 h2\n"
        "fault loss h1-leaf1 1\nh1 ping -c 2 -i 0.2 -W 1 h2\n"
        "fault mend h1-leaf1\nh1 ping -c 2 -i 0.2 h2\nfault loss h1-leaf1 many\nexit\n"
    )
    text = (done := cli("up", scenario(FABRIC), stdin=commands, timeout_s=120)).out + done.err
    fastest = [float(x) for x in re.findall(r"rtt min/avg/max/mdev = ([0-9.]+)/", text)]
    assert len(fastest) == 3, text
    plain, late, mended = fastest
    # Twice 50 us on the way there and back, a thousand times slower.
    assert late >= 100
    assert plain < 50
    assert mended < 50
    assert "100% packet loss" in text
    assert "Invalid literal for Fraction" in text


def test_bad_scenario_starts_nothing(cli, scenario):
    done = cli("up", scenario(FABRIC.replace("spines", "spine")))
    assert done.code == 2
    assert "did you mean spines?" in done.err


SCRIPT = """
import subprocess, sys, time
from mininet.net import Mininet
from mininet.node import RemoteController
from mininet.topo import SingleSwitchTopo
from testbed.emulation import FabricLink, FabricSwitch, RdmaHost

controller = subprocess.Popen([sys.executable, "-m", "controllers.launch", "--port", "PORT", "learning"])
net = Mininet(topo=SingleSwitchTopo(3), host=RdmaHost, switch=FabricSwitch, link=FabricLink,
              controller=lambda name: RemoteController(name, ip="127.0.0.1", port=PORT), autoSetMacs=True)
net.start()
try:
    switch = net.get("s1")
    for _ in range(200):
        if switch.connected():
            break
        time.sleep(0.05)
    time.sleep(0.5)
    for host in net.hosts:
        for other in net.hosts:
            host.setARP(other.IP(), other.MAC())
    print("LOSS", net.pingAll())
finally:
    net.stop()
    controller.kill()
    controller.wait()
"""

LEARNING = '''
"""A controller that knows where hosts are: h1 on port 1, and so on."""
from os_ken.base.app_manager import OSKenApp
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, set_ev_cls
from os_ken.ofproto import ofproto_v1_3 as o


class Learning(OSKenApp):
    OFP_VERSIONS = [o.OFP_VERSION]

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def features(self, ev):
        dp = ev.msg.datapath
        p = dp.ofproto_parser
        for port in (1, 2, 3):
            match = p.OFPMatch(eth_dst=f"00:00:00:00:00:0{port}")
            apply = p.OFPInstructionActions(o.OFPIT_APPLY_ACTIONS, [p.OFPActionOutput(port)])
            dp.send_msg(p.OFPFlowMod(datapath=dp, priority=1, match=match, instructions=[apply]))
'''


def test_a_mininet_script_of_ones_own(tmp_path):
    from testbed.emulation.live import free_port

    (tmp_path / "learning.py").write_text(LEARNING)
    (tmp_path / "script.py").write_text(SCRIPT.replace("PORT", str(free_port())))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )  # fmt: skip
    assert "LOSS 0.0" in done.stdout, done.stdout + done.stderr
