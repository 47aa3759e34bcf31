"""`python -m megacompile` is the command."""

from megacompile.commands import main

if __name__ == "__main__":
    main()
