"""`python -m wima` is the command `wima`."""

from wima.cli.main import main

if __name__ == "__main__":
    main()
