"""A process that reads rows of a remote dataset: `fetcher.py URL ROWS STEPS`, rows as JSON."""

import json
import sys

from strata.data.source_dataset import open_dataset


def main() -> None:
    url, rows = sys.argv[1], json.loads(sys.argv[2])
    dataset = open_dataset(url)
    print("opened", flush=True)
    for row in rows:
        print(json.dumps([row, int(dataset.read([row])["data"][0].sum())]), flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
