"""A model that is compiled, from nothing: the folder of the cache is a new one."""

import os
import shutil

import torch


def main() -> None:
    assert not os.path.exists(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    torch.manual_seed(0)
    compiler = "inductor" if shutil.which("g++") else "aot_eager"
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU()), backend=compiler)
    for _ in range(2):
        out = model(torch.ones(2, 8))
    print(tuple(out.shape))


if __name__ == "__main__":
    main()
