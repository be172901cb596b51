"""``python -m mindtorch`` is ``genie``."""

from mindtorch.cli.main import cli

if __name__ == "__main__":
    cli.main(prog_name="python -m mindtorch")
