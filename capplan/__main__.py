"""python -m capplan: the command line."""

from capplan.cli.main import main

main(prog_name="capplan")
