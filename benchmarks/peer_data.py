"""Run by bench_data.py in a peer's own environment: the same data through the peer.

    python peer_data.py rate PEER PATH ROUNDS SAMPLES BATCH
    python peer_data.py resume PEER PATH ROUNDS STEP BATCH
    python peer_data.py resize PEER

`rate`: samples per second of each round, warm, shuffled, one process. `resume`: seconds from a
state that was saved at a step to its next batch, in a new iterator. `resize`: four workers train
200 steps of an epoch of 10,240 samples, then three load the states of the first three and train to
the end; the numbers of samples that were lost and repeated. Prints JSON; imports nothing of Strata.
Peers that need their own format get the first `CONVERTED` rows in it.
"""

import atexit
import glob
import itertools
import json
import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
import time

SAMPLES, STEPS, OWN = 10_240, 200, 8
CONVERTED = 20_000


class Rows:
    """A memory-mapped array, one row at a time; with `dry`, only positions are returned."""

    def __init__(self, path, dry=False):
        import numpy

        self.rows, self.dry = numpy.load(path, mmap_mode="r"), dry

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        return 0 if self.dry else self.rows[row].copy()


def mosaicml_rate(path, samples, batch):
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=path, shuffle=True, batch_size=batch, num_canonical_nodes=1)
    return lambda: itertools.islice(iter(dataset), samples), 1


def mosaicml_resume(path, step, batch):
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=path, shuffle=True, batch_size=batch, num_canonical_nodes=1)
    next(iter(dataset))

    def resume():
        dataset.load_state_dict(dataset.state_dict(step * batch, True))
        return lambda: consume(itertools.islice(iter(dataset), batch))

    return resume


def webdataset_rate(path, samples, batch):
    import webdataset as wds

    urls = sorted(glob.glob(f"{path}/*.tar"))

    def run():
        dataset = wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(1000)
        return itertools.islice(iter(dataset), samples)

    return run, 1


def dataloader_rate(path, samples, batch):
    from torch.utils.data import DataLoader

    loader = DataLoader(Rows(path), batch_size=batch, shuffle=True)
    return lambda: itertools.islice(loader, samples // batch), batch


def stateful_rate(path, samples, batch):
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(Rows(path), batch_size=batch, shuffle=True)
    return lambda: itertools.islice(loader, samples // batch), batch


def stateful_resume(path, step, batch):
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(Rows(path, dry=True), batch_size=batch, shuffle=True)
    for _ in itertools.islice(loader, step):
        pass
    state = loader.state_dict()

    def resume():
        again = StatefulDataLoader(Rows(path), batch_size=batch, shuffle=True)
        again.load_state_dict(state)
        return lambda: next(iter(again))

    return resume


def stateful_share(rank, world):
    from torch.utils.data import DistributedSampler
    from torchdata.stateful_dataloader import StatefulDataLoader

    sampler = DistributedSampler(range(SAMPLES), world, rank, shuffle=True, seed=7)
    loader = StatefulDataLoader(range(SAMPLES), batch_size=OWN, sampler=sampler)
    return loader, lambda: (sample for batch in loader for sample in batch.tolist())


def grain_dataset(source, batch):
    import grain

    return grain.MapDataset.source(source).shuffle(seed=7).batch(batch_size=batch)


def grain_rate(path, samples, batch):
    dataset = grain_dataset(Rows(path), batch).to_iter_dataset()
    return lambda: itertools.islice(dataset, samples // batch), batch


def grain_resume(path, step, batch):
    dataset = grain_dataset(Rows(path), batch).to_iter_dataset()
    state = {**iter(dataset).get_state(), "next_index": step}

    def resume():
        again = iter(grain_dataset(Rows(path), batch).to_iter_dataset())
        again.set_state(state)
        return lambda: next(again)

    return resume


class GrainShare:
    """An iterator over one worker's part, with the methods of the other peers."""

    def __init__(self, rank, world):
        import grain

        dataset = grain.MapDataset.range(SAMPLES).shuffle(seed=7)[rank::world]
        self.iterator = iter(dataset.to_iter_dataset())
        self.state_dict, self.load_state_dict = self.iterator.get_state, self.iterator.set_state


def grain_share(rank, world):
    share = GrainShare(rank, world)
    return share, lambda: (int(sample) for sample in share.iterator)


def huggingface_dataset(path):
    import datasets
    import pyarrow

    rows = Rows(path).rows[:CONVERTED]
    cells = pyarrow.array([row.tobytes() for row in rows], pyarrow.binary())
    return datasets.Dataset(pyarrow.table({"x": cells}))


def huggingface_rate(path, samples, batch):
    dataset = huggingface_dataset(path).shuffle(seed=7)
    steps = samples // batch
    return lambda: itertools.islice(dataset.iter(batch_size=batch), steps), batch


def huggingface_resume(path, step, batch):
    dataset = huggingface_dataset(path)

    def make():
        streamed = dataset.to_iterable_dataset(num_shards=64).shuffle(seed=7, buffer_size=1000)
        return streamed.batch(batch)

    first = make()
    for _ in itertools.islice(first, min(step, len(dataset) // batch // 2)):
        pass
    state = first.state_dict()

    def resume():
        again = make()
        again.load_state_dict(state)
        return lambda: next(iter(again))

    return resume


def huggingface_share(rank, world):
    import datasets
    from datasets.distributed import split_dataset_by_node

    whole = datasets.Dataset.from_dict({"x": list(range(SAMPLES))})
    streamed = whole.to_iterable_dataset().shuffle(seed=7, buffer_size=1000)
    share = split_dataset_by_node(streamed, rank, world)
    return share, lambda: (row["x"] for row in share)


def litdata_folder(path):
    import litdata

    folder = tempfile.mkdtemp(prefix="litdata-")
    rows = Rows(path).rows[:CONVERTED]
    litdata.optimize(
        rows.__getitem__,
        list(range(len(rows))),
        folder,
        chunk_bytes="64MB",
        num_workers=1,
        verbose=False,
    )
    return folder


def litdata_rate(path, samples, batch):
    import litdata

    folder = litdata_folder(path)
    loader = litdata.StreamingDataLoader(
        litdata.StreamingDataset(folder, shuffle=True), batch_size=batch
    )
    atexit.register(shutil.rmtree, folder)
    return lambda: itertools.islice(loader, samples // batch), batch


RATES = {
    "mosaicml": mosaicml_rate,
    "webdataset": webdataset_rate,
    "dataloader": dataloader_rate,
    "stateful": stateful_rate,
    "grain": grain_rate,
    "huggingface": huggingface_rate,
    "litdata": litdata_rate,
}
RESUMES = {
    "mosaicml": mosaicml_resume,
    "stateful": stateful_resume,
    "grain": grain_resume,
    "huggingface": huggingface_resume,
}
SHARES = {"stateful": stateful_share, "grain": grain_share, "huggingface": huggingface_share}


def mosaicml_files(folder):
    from streaming import MDSWriter

    with MDSWriter(out=folder, columns={"x": "int"}, size_limit=1 << 12) as writer:
        for sample in range(SAMPLES):
            writer.write({"x": sample})


def mosaicml_loader(folder):
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=OWN)
    return StreamingDataLoader(dataset, batch_size=OWN), lambda batch: batch["x"].tolist()


def litdata_files(folder):
    import litdata

    how = {"chunk_size": 64, "num_workers": 1, "verbose": False}
    litdata.optimize(number, list(range(SAMPLES)), folder, **how)


def number(sample):
    return sample


def litdata_loader(folder):
    import litdata

    dataset = litdata.StreamingDataset(folder, shuffle=True, drop_last=False)
    return litdata.StreamingDataLoader(dataset, batch_size=OWN), lambda batch: batch.tolist()


GROUPS = {
    "mosaicml": (mosaicml_files, mosaicml_loader),
    "litdata": (litdata_files, litdata_loader),
}


def consume(items):
    return sum(1 for _ in items)


def rate(peer, path, rounds, samples, batch):
    run, size = RATES[peer](path, samples, batch)
    consume(run())
    found = []
    for _ in range(rounds):
        items = iter(run())
        next(items)  # what it takes to begin an epoch does not count
        began = time.perf_counter()
        found.append(consume(items) * size / (time.perf_counter() - began))
    return found


def resume(peer, path, rounds, step, batch):
    begin = RESUMES[peer](path, step, batch)
    found = []
    for _ in range(rounds + 1):  # the first brings what it reads into memory
        began = time.perf_counter()
        begin()()
        found.append(time.perf_counter() - began)
    return found[1:]


def member(peer, folder, place, state, steps, pipe):
    """One process of a group: trains some steps (None: to the end), from a state if it has one.

    A peer's processes wait for each other, so none ends before all are done.
    """
    import torch

    os.environ.update(place)
    torch.distributed.init_process_group("gloo")
    loader, samples = GROUPS[peer][1](folder)
    if state is not None:
        loader.load_state_dict(state)
    batches = itertools.islice(loader, steps)
    taken = [sample for batch in batches for sample in samples(batch)]
    pipe.send((taken, loader.state_dict()))
    torch.distributed.barrier()


def group(peer, folder, world, states, steps):
    """The samples and the final state of each process of a group.

    The processes are forked, since each import of these libraries takes many seconds.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    place |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "NODE_RANK": "0"}
    forks = multiprocessing.get_context("fork")
    heard = []
    for rank in range(world):
        ours, theirs = forks.Pipe()
        own = place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        state = states[rank] if states else None
        given = (peer, folder, own, state, steps, theirs)
        forks.Process(target=member, args=given, daemon=True).start()
        heard.append(ours)
    return [each.recv() for each in heard]


def resize_group(peer):
    """`resize` for peers whose workers need a group of processes."""
    seen = [0] * SAMPLES
    with tempfile.TemporaryDirectory(prefix=f"{peer}-") as folder:
        GROUPS[peer][0](folder)
        before = group(peer, folder, 4, None, STEPS)
        after = group(peer, folder, 3, [state for _, state in before], None)
    for taken, _ in before + after:
        for sample in taken:
            seen[sample] += 1
    return wrong(seen)


def wrong(seen):
    return {"lost": seen.count(0), "twice": sum(count > 1 for count in seen)}


def resize(peer):
    if peer in GROUPS:
        return resize_group(peer)
    seen = [0] * SAMPLES
    states = []
    for rank in range(4):
        share, samples = SHARES[peer](rank, 4)
        for sample in itertools.islice(samples(), STEPS * OWN):
            seen[sample] += 1
        states.append(share.state_dict())
    for rank in range(3):
        share, samples = SHARES[peer](rank, 3)
        share.load_state_dict(states[rank])
        for sample in samples():
            seen[sample] += 1
    return wrong(seen)


def main():
    what, peer, *rest = sys.argv[1:]
    if what == "resize":
        print(json.dumps(resize(peer)))
        return
    path, numbers = rest[0], map(int, rest[1:])
    print(json.dumps({"rate": rate, "resume": resume}[what](peer, path, *numbers)))


if __name__ == "__main__":
    main()
