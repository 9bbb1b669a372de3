"""`python -m hubspoke`, the same as the command `hubspoke`."""

from hubspoke.cli import main

main()
