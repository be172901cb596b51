"""Callbacks that profile some steps of a training loop that is a library's: transformers' Trainer, Lightning's.

    trainer = Trainer(..., callbacks=[mindtorch.profile.callbacks.TransformersCallback(steps=3, save="profile.html")])

Of several processes, the first one alone is profiled. What they are callbacks of is imported when they are asked for.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindtorch.profiling import Profile

__all__ = ["LightningCallback", "TransformersCallback"]  # noqa: F822 - made by __getattr__


class _Steps:
    """steps: how many are reported, after `warmup` ones; then the report is printed (show) and written to `save`, in
    the format of its name. options: those of `mindtorch.profile`. Afterwards, `profile` is the profile."""

    def __init__(
        self, steps: int = 3, warmup: int = 1, save: str | os.PathLike[str] | None = None, show: bool = True,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(steps, int) or not isinstance(warmup, int):
            name = type(self).__name__
            raise TypeError(f"[{name}] expected whole numbers for steps and warmup, got {steps!r} and {warmup!r}")
        if steps < 1 or warmup < 0:
            raise ValueError(f"[{type(self).__name__}] expected steps >= 1 and warmup >= 0, got {steps} and {warmup}")
        self._steps, self._warmup, self._save, self._show, self._options = steps, warmup, save, show, options
        self._begun = 0
        self._making: Profile | None = None
        self.profile: Profile | None = None

    def _begins(self, first_process: bool) -> None:
        """A step begins."""
        if self.profile is not None or not first_process:
            return
        if self._making is None:
            made: Profile = importlib.import_module("mindtorch.profiling").Profile(whole=False, **self._options)
            self._making = made.__enter__()  # type: ignore[assignment]  # it is itself
        assert self._making is not None
        self._making.stage("warmup" if self._begun < self._warmup else "main")
        self._begun += 1

    def _ended(self) -> None:
        """A step has."""
        if self._begun >= self._warmup + self._steps:
            self._over()

    def _over(self) -> None:
        """No more steps are wanted, or there are none."""
        if self._making is None:
            return
        made, self._making = self._making, None
        made.stage("init")
        made.__exit__(None, None, None)
        self.profile = made
        if self._show:
            sys.stdout.write(f"{made}\n")
        if self._save is not None:
            made.save(self._save)


def _transformers() -> type:
    base = _needed("transformers", "transformers").TrainerCallback

    class TransformersCallback(_Steps, base):  # type: ignore[misc, valid-type]
        __doc__ = f"For transformers' Trainer. {_Steps.__doc__}"

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._begins(state.is_world_process_zero)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._ended()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._over()

    return TransformersCallback


def _lightning() -> type:
    base = _needed("lightning.pytorch", "pytorch_lightning").Callback

    class LightningCallback(_Steps, base):  # type: ignore[misc, valid-type]
        __doc__ = f"For Lightning's Trainer. {_Steps.__doc__}"

        def on_train_batch_start(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            self._begins(trainer.is_global_zero)

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            self._ended()

        def on_train_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            self._over()

        def on_exception(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            self._over()

    return LightningCallback


def _needed(*names: str) -> Any:
    """The first of these modules that there is."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    package = names[0].partition(".")[0]
    raise ImportError(f"[profile] this callback needs {package}: pip install {package}")


_MADE = {"TransformersCallback": _transformers, "LightningCallback": _lightning}


def __getattr__(name: str) -> Any:
    make = _MADE.get(name)
    if make is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = make()
    return found
