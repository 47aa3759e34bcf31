"""`python -m megacompile` is the command."""

from megacompile.cli import main

if __name__ == "__main__":
    main()
