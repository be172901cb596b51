"""A character-level LSTM that asks for CUDA, as most scripts do, and runs on a worker if there is none.

    python examples/char_rnn.py                                  # on this machine's GPU, or its CPU
    genie run --map cuda --executor pipe examples/char_rnn.py    # "cuda" is a worker: another process, here
    genie run --map cuda --executor ray examples/char_rnn.py     # a worker of a Ray cluster

A worker on a CPU gives the same losses and text as plain python on a CPU, bit for bit. The name of
the device goes to standard error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TEXT = "Beautiful is better than ugly. Explicit is better than implicit. Simple is better than complex."


class CharRNN(nn.Module):
    def __init__(self, vocab: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, state = self.lstm(self.embed(ids), state)
        return self.head(out), state


@torch.no_grad()
def write(model: CharRNN, start: Tensor, length: int) -> list[int]:
    """Greedy decoding: one character at a time, with the LSTM's state."""
    model.eval()
    logits, state = model(start)
    ids = [logits[:, -1:].argmax(-1)]
    while len(ids) < length:
        logits, state = model(ids[-1], state)
        ids.append(logits.argmax(-1))
    return torch.cat(ids, dim=1)[0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a character-level LSTM on a few sentences.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save", type=Path, help="write the weights to this file")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"on {device}", file=sys.stderr)
    torch.manual_seed(0)
    alphabet = sorted(set(TEXT))
    ids = torch.tensor([alphabet.index(character) for character in TEXT], device=device)[None]
    model = CharRNN(len(alphabet)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    for step in range(1, args.steps + 1):
        logits, _ = model(ids[:, :-1])
        loss = F.cross_entropy(logits[0], ids[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")

    written = write(model, ids[:, :10], 21)
    print(TEXT[:10] + "".join(alphabet[i] for i in written))
    if args.save is not None:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
