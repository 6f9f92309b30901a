"""A Ray cluster of two nodes on this machine, in its own process, controlled by stdin.

Ray's warnings at import would be errors in the test process.
"""

import subprocess
import sys


class RayCluster:
    """A cluster whose nodes have one CPU each."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._answer()

    def kill_node(self):
        """Kill the second node."""
        self._order("kill")

    def add_node(self):
        """Add another node."""
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

    from strata.launch.ray_agents import ray  # before anything else imports it

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
