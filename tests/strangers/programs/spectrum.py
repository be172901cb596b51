"""Filters a signal in the frequency domain, with complex numbers throughout."""

import torch

torch.manual_seed(0)
time = torch.arange(512) / 512
signal = torch.sin(2 * torch.pi * 5 * time) + 0.5 * torch.sin(2 * torch.pi * 60 * time) + 0.1 * torch.randn(512)
spectrum = torch.fft.rfft(signal)
frequencies = torch.fft.rfftfreq(512, 1 / 512)
spectrum[frequencies > 20] = 0
clean = torch.fft.irfft(spectrum)
window = torch.hann_window(64)
short = torch.stft(clean, 64, hop_length=32, window=window, return_complex=True)
power = short.abs().square()
rotated = torch.view_as_complex(torch.view_as_real(short).flip(-1)).conj()
print(f"{clean.std().item():.4f} {power.mean(1).argmax().item()} {rotated.real.sum().item():.3f}")
print(f"{short.angle().std().item():.4f}")
back = torch.istft(short, 64, hop_length=32, window=window)
print(tuple(back.shape), f"{(back - clean[: len(back)]).abs().max().item() < 1e-4}")
