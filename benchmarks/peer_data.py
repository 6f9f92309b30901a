"""Run by bench_data.py in a peer's own environment: reads the same files through the peer.

    python peer_data.py PEER PATH ROUNDS SAMPLES BATCH

Prints JSON: samples a second for each round, warm, shuffled, one process, and (where the peer can
resume) seconds from a loaded state to the first batch. Imports nothing of Strata.
"""

import glob
import itertools
import json
import sys
import time


def mosaicml(path, samples, batch):
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=path, shuffle=True, batch_size=batch, num_canonical_nodes=1)
    for _ in itertools.islice(dataset, samples):
        pass

    def resume():
        dataset.load_state_dict(dataset.state_dict(samples, True))
        next(iter(dataset))

    return lambda: consume(itertools.islice(iter(dataset), samples)), resume


def webdataset(path, samples, batch):
    import webdataset as wds

    urls = sorted(glob.glob(f"{path}/*.tar"))

    def run():
        dataset = wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(1000)
        return consume(itertools.islice(iter(dataset), samples))

    return run, None


class Rows:
    def __init__(self, path):
        import numpy

        self.rows = numpy.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        return self.rows[row].copy()


def dataloader(path, samples, batch):
    from torch.utils.data import DataLoader

    loader = DataLoader(Rows(path), batch_size=batch, shuffle=True)
    return lambda: consume(itertools.islice(loader, samples // batch)) * batch, None


def stateful(path, samples, batch):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make():
        return StatefulDataLoader(Rows(path), batch_size=batch, shuffle=True)

    loader = make()
    steps = iter(loader)
    for _ in range(samples // batch // 2):
        next(steps)
    state = loader.state_dict()

    def resume():
        again = make()
        again.load_state_dict(state)
        next(iter(again))

    return lambda: consume(itertools.islice(make(), samples // batch)) * batch, resume


PEERS = {
    "mosaicml": mosaicml,
    "webdataset": webdataset,
    "dataloader": dataloader,
    "stateful": stateful,
}


def consume(items):
    return sum(1 for _ in items)


def main():
    peer, path, rounds, samples, batch = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    run, resume = PEERS[peer](path, samples, batch)
    run()
    rates, resumes_s = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        count = run()
        rates.append(count / (time.perf_counter() - began))
        if resume is not None:
            began = time.perf_counter()
            resume()
            resumes_s.append(time.perf_counter() - began)
    print(json.dumps({"rates": rates, "resumes_s": resumes_s}))


if __name__ == "__main__":
    main()
