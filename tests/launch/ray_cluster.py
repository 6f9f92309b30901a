"""A Ray cluster of two nodes on this machine, in a process of its own that obeys its stdin.

Ray warns at import in ways that the tests' own process would take for errors.
"""

import subprocess
import sys


class RayCluster:
    """The cluster; each node has one CPU."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._answer()

    def kill_node(self):
        """The second node is gone, without a word."""
        self._order("kill")

    def add_node(self):
        """Another node comes."""
        self._order("add")

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _order(self, command):
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._answer() == "done"

    def _answer(self):
        for line in self._process.stdout:
            if line.startswith("answer "):
                return line.removeprefix("answer ").strip()
        raise AssertionError("the Ray cluster ended")


def main():
    from ray.cluster_utils import Cluster

    from strata.launch.ray_library import ray  # before anything else imports it

    assert ray
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    node = cluster.add_node(num_cpus=1)
    print(f"answer {cluster.address}", flush=True)
    for command in sys.stdin:
        if command.strip() == "kill":
            cluster.remove_node(node, allow_graceful=False)
        else:
            node = cluster.add_node(num_cpus=1)
        print("answer done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
