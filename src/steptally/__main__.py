"""`python -m steptally`."""

from steptally.cli.main import main

main()
