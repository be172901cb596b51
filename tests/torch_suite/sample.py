"""Tests in the form that PyTorch's have, one for each thing that can happen to one (see test_driver.py)."""

# mypy: ignore-errors
import os
import signal
import time

import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCPU, onlyCUDA
from torch.testing._internal.common_utils import TestCase, run_tests


class TestSample(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_sum(self, device, dtype):
        x = torch.ones(3, device=device, dtype=dtype)
        self.assertEqual(str(x.device), device)
        self.assertEqual(x.sum(), torch.tensor(3, dtype=dtype))

    @onlyCPU
    def test_of_the_cpu(self, device):
        self.assertRaises(RuntimeError, lambda: torch.ones(2, device=device) + torch.ones(3, device=device))

    @onlyCUDA
    def test_elsewhere(self, device):
        self.fail(device)

    def test_wrong(self, device):
        self.fail(device)

    def test_late_error(self, device):
        torch.zeros(2, device=device).index_add_(0, torch.tensor([0], device=device) + 7, torch.ones(1, device=device))

    def test_name(self, device):
        self.assertEqual(device, "cpu")

    def test_excused(self, device):
        self.assertEqual(device, "cpu")

    def test_crash(self, device):
        if device != "cpu":
            os.kill(os.getpid(), signal.SIGSEGV)

    def test_hang(self, device):
        while device != "cpu":
            time.sleep(1)

    def test_zero(self, device):
        self.assertEqual(torch.zeros(2, device=device).tolist(), [0, 0])


class TestPlain(TestCase):
    def test_default_device(self):
        self.assertEqual(torch.ones(2).device, torch.get_default_device())


instantiate_device_type_tests(TestSample, globals(), only_for="privateuse1")

if __name__ == "__main__":
    run_tests()
