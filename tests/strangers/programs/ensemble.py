"""An ensemble of models runs as one, with stacked parameters; the models come from a file found at run time."""

import copy
import importlib.util
import pathlib

import torch
from torch.func import functional_call, stack_module_state, vmap

place = pathlib.Path(__file__).parent / "zoo" / "models.py"
spec = importlib.util.spec_from_file_location("zoo_models", place)
zoo = importlib.util.module_from_spec(spec)
spec.loader.exec_module(zoo)

torch.manual_seed(0)
models = [zoo.small(n_in=6, n_out=2).eval() for _ in range(3)]
parameters, buffers = stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")


def one(parameters, buffers, x):
    return functional_call(base, (parameters, buffers), (x,))


x = torch.randn(5, 6)
with torch.no_grad():
    together = vmap(one, (0, 0, None))(parameters, buffers, x)
    apart = torch.stack([model(x) for model in models])
print(tuple(together.shape), torch.allclose(together, apart, atol=1e-6))
