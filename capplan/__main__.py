"""python -m capplan: the command line."""

from capplan.cli import main

main(prog_name="capplan")
