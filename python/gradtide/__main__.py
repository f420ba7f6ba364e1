"""`python -m gradtide` is `gradtide`."""

from gradtide.cli import main

if __name__ == "__main__":
    main()
