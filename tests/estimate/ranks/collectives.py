"""Collectives, messages and objects by hand."""

import torch
import torch.distributed as dist

dist.init_process_group(backend="nccl", init_method="env://")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
device = torch.device("cuda", rank % torch.cuda.device_count())
group = dist.new_group(list(range(size)))
t = torch.ones(1 << 20, device=device)
dist.all_reduce(t, op=dist.ReduceOp.SUM, group=group)
work = dist.all_reduce(t, async_op=True)
y = torch.randn(2048, 2048, device=device) @ torch.randn(2048, 2048, device=device)
work.wait()
parts = [torch.empty_like(t) for _ in range(size)]
dist.all_gather(parts, t)
out = torch.empty(size * t.numel(), device=device)
dist.all_gather_into_tensor(out, t)
dist.reduce_scatter_tensor(t, out)
dist.all_to_all_single(torch.empty_like(out), out)
dist.broadcast(t, src=0)
if rank == 0:
    for peer in range(1, size):
        dist.send(t, dst=peer)
else:
    dist.recv(t, src=0)
to_next = dist.P2POp(dist.isend, t, (rank + 1) % size)
from_last = dist.P2POp(dist.irecv, torch.empty_like(t), (rank - 1) % size)
reqs = dist.batch_isend_irecv([to_next, from_last])
for r in reqs:
    r.wait()
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank, "n": 3})
assert objects[rank]["rank"] == rank and all(o["n"] == 3 for o in objects), objects
config = [{"lr": 0.1}, "x"] if rank == 0 else [None, None]
dist.broadcast_object_list(config, src=0)
counts = torch.tensor([rank + 1], device=device)
gathered = [torch.zeros_like(counts) for _ in range(size)]
dist.all_gather(gathered, counts)
most = max(int(g) for g in gathered)
dist.barrier()
dist.monitored_barrier() if dist.get_backend() == "gloo" else None
if rank == 0:
    print("most", most, "of", size, dist.get_backend(), dist.is_nccl_available(), dist.is_torchelastic_launched())
dist.destroy_process_group()
