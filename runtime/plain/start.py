"""The script of a worker whose user's script knows nothing of reknit; see `host`."""

from reknit.runtime.plain.host import main

if __name__ == "__main__":
    main()
