"""Starts os-ken applications in this process: os-ken has no command line of its own any more.

Example: python -m controllers.launch --port 6653 controllers.subnet_manager
"""

import argparse
import logging
import sys

from os_ken import cfg
from os_ken.base.app_manager import AppManager
from os_ken.lib import hub


def main(arguments: list[str] | None = None) -> None:
    """Runs the applications named until the process is ended."""
    options = argparse.ArgumentParser(prog="controllers.launch", description=__doc__)
    options.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    options.add_argument("--port", type=int, default=6653, help="TCP port to listen on (default: %(default)s)")
    options.add_argument("--verbose", action="store_true", help="log what os-ken does")
    options.add_argument("apps", nargs="+", metavar="APP", help="module of an os-ken application")
    chosen = options.parse_args(arguments)
    logging.basicConfig(
        level=logging.DEBUG if chosen.verbose else logging.WARNING,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    cfg.CONF(args=[], project="os_ken")
    cfg.CONF.set_override("ofp_listen_host", chosen.host)
    cfg.CONF.set_override("ofp_tcp_listen_port", chosen.port)
    manager = AppManager.get_instance()
    manager.load_apps(["os_ken.controller.ofp_handler", *chosen.apps])
    contexts = manager.create_contexts()
    threads = manager.instantiate_apps(**contexts)
    try:
        hub.joinall(threads)
    finally:
        manager.close()


if __name__ == "__main__":
    main()
