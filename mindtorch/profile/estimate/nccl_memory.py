"""What NCCL holds of a GPU for the communicators of a rank: buffers of every channel to every neighbour (SPEC C4).

They are not torch's: a communicator has them from its first collective on, for good. Where the figures are from:

- A group: 544 MiB for two ranks and 688 MiB for more, however many, as was measured on A100s with NVLink (NVIDIA/nccl,
  issue 964), where NCCL opens 24 channels. "Linearly tied to the number of channels", say its authors (issue 864).
- Messages and all-to-all open 32 channels to each peer of the machine: 3.28 GB for seven of them on H100s (issue 1685),
  which is for each channel the receiver's 10 MiB (4 MiB, 4.7 MiB and 0.5 MiB of the protocols Simple, LL128 and LL, in
  pages of 2 MiB), and 4 MiB of the sender's.
- Without NVLink two channels are opened, "2 is the minimum" (issue 689).

Peers on other machines share buffers of the network's, which are not counted; nor are those of RCCL and HCCL.
"""

from __future__ import annotations

from ...base.clusters import Cluster
from ..cost.collectives import POINT_TO_POINT, links_of
from ..cost.driver import is_amd
from ..cost.targets import Target
from . import exchanged

__all__ = ["held"]

MIB = 1 << 20
_OF_TWO, _OF_MORE, _MEASURED_CHANNELS = 544 * MIB, 688 * MIB, 24
_OF_PEER, _PEER_CHANNELS = 14 * MIB, 32
_FEWEST_CHANNELS = 2
#: Bytes per second, one way, that PCIe 5 does not reach.
_NVLINK = 100e9
_TO_EACH = ("all_to_all",)


def held(target: Target, cluster: Cluster) -> dict[str, int]:
    """Bytes, by name, for what the rank has exchanged so far; empty for nothing, and where it is not NCCL."""
    if target.device != "cuda" or is_amd(target.capability):
        return {}
    fast = links_of(target.key).link >= _NVLINK
    groups = {call.ranks for call in exchanged.distinct if call.kind not in POINT_TO_POINT and len(call.ranks) > 1}
    whole = sum(_OF_TWO if len(ranks) == 2 else _OF_MORE for ranks in groups)
    peers = {rank for call in exchanged.distinct if call.kind in (*POINT_TO_POINT, *_TO_EACH) for rank in call.ranks}
    here = [rank for rank in peers - {cluster.rank} if rank // cluster.per_machine == cluster.machine]
    if not fast:
        whole = whole * _FEWEST_CHANNELS // _MEASURED_CHANNELS
    whole += len(here) * (_PEER_CHANNELS if fast else _FEWEST_CHANNELS) * _OF_PEER
    return {"NCCL": whole} if whole else {}
