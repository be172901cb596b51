"""R2: a program that is on no node of the cluster, through Ray's client server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mindtorch.cluster import nodes, private_cluster

from .blows import outside

pytest.importorskip("ray", reason="Ray is not installed: pip install 'mindtorch-genie[ray]'")
pytest.importorskip("grpc", reason="Ray's client is not installed: pip install 'ray[client]'")
_PROGRAM = """
import torch, mindtorch
x = torch.arange(3_000_000.0).to("remote_accelerator:0")
there = (x + 1).to("remote_accelerator:1")
print(mindtorch.get_executor().count, (there * 2)[-1].item(), x.cpu()[5].item())
mindtorch.disconnect()
"""


@pytest.mark.whole
def test_R2_a_program_computes_through_rays_client_server() -> None:
    """Also copies between workers, and values of more than one part. Nothing else is written."""
    ports = [port for port in range(9500, 9999) if not private_cluster.answers("127.0.0.1", port)][:2]
    with nodes.started(port=ports[0], cpus=2, more=[f"--ray-client-server-port={ports[1]}"]) as node:
        variables = {
            "RAY_AUTH_TOKEN": node.token, "GENIE_EXECUTOR": "ray", "GENIE_WORKERS": "2",
            "GENIE_ADDRESS": f"ray://127.0.0.1:{ports[1]}",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], env=outside() | variables, capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 6000000.0 5.0\n", "")
