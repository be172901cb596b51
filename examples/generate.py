"""Text generation with transformers: a small Llama with random weights, ``generate`` with a key-value cache.

The weights are random, so the tokens mean nothing; the code is what you would write for a real checkpoint.

    pip install transformers
    python examples/generate.py                       # as it is
    genie profile examples/generate.py                # prefill and decode, tokens per second, size of the cache
    genie profile --target h100 examples/generate.py  # how long it would take on an H100
    genie run --executor pipe examples/generate.py    # the same tokens, computed by another process
"""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate tokens with a small Llama.")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=32, help="tokens in each prompt (default 32)")
    parser.add_argument("--new-tokens", type=int, default=16, help="tokens to generate (default 16)")
    parser.add_argument("--sample", action="store_true", help="sample instead of greedy decoding")
    args = parser.parse_args()

    if torch.cuda.is_available():
        torch.set_default_device("cuda")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=args.width,
        intermediate_size=3 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1024,
        pad_token_id=0,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    print(f"Llama: {model.num_parameters() / 1e6:.1f} M parameters, {args.layers} layers")

    prompts = torch.randint(1, config.vocab_size, (args.batch, args.prompt))
    tokens = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=args.new_tokens,
        do_sample=args.sample,
    )
    for row in tokens[:, args.prompt :].tolist():
        print("generated", *row)


if __name__ == "__main__":
    main()
