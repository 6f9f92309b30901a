"""The same samples in every format: row i has number i, a vector that begins with i, and a text."""

import bz2
import io
import json
import struct
import tarfile
from functools import partial

import numpy as np
import pyarrow

from strata.data.cache.decompression import codec_of

WIDTH = 16


def vectors(count):
    found = np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH)
    found[:, 0] = np.arange(count)
    return found


def texts(count):
    return [f"text {i} {'é' * (i % 5)}" for i in range(count)]


def write_npy(folder, count):
    folder.mkdir()
    np.save(folder / "number.npy", np.arange(count))
    half = count // 2
    np.save(folder / "vector-0.npy", vectors(count)[:half])
    np.save(folder / "vector-1.npy", vectors(count)[half:])


def write_jsonl(folder, count, per_file=37):
    folder.mkdir()
    for part, first in enumerate(range(0, count, per_file)):
        rows = range(first, min(first + per_file, count))
        lines = [
            json.dumps({"number": i, "vector": vectors(count)[i].tolist(), "text": texts(count)[i]})
            for i in rows
        ]
        (folder / f"{part:03}.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")


def write_parquet(folder, count, suffix=".parquet"):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    flat = pa.array(vectors(count).ravel())
    table = pa.table(
        {
            "number": np.arange(count),
            "vector": pa.FixedSizeListArray.from_arrays(flat, WIDTH),
            "text": texts(count),
        }
    )
    half = count // 2
    for name, part in (("a", table.slice(0, half)), ("b", table.slice(half))):
        if suffix == ".parquet":
            pq.write_table(part, folder / f"{name}.parquet", row_group_size=20)
        else:
            with pa.ipc.new_file(str(folder / f"{name}.arrow"), table.schema) as writer:
                for batch in part.to_batches(max_chunksize=20):
                    writer.write_batch(batch)


def write_tar(folder, count, per_file=23):
    folder.mkdir()
    for part, first in enumerate(range(0, count, per_file)):
        with tarfile.open(folder / f"{part:03}.tar", "w") as tar:
            for i in range(first, min(first + per_file, count)):
                members = {
                    "cls": str(i).encode(),
                    "vector": vectors(count)[i].tobytes(),
                    "txt": texts(count)[i].encode(),
                    "json": json.dumps({"i": i}).encode(),
                }
                for extension, raw in members.items():
                    info = tarfile.TarInfo(f"folder/{i:06}.{extension}")
                    info.size = len(raw)
                    tar.addfile(info, io.BytesIO(raw))


def write_mds(folder, count, per_file=29):
    """Shards as MosaicML's MDSWriter lays them out."""
    folder.mkdir()
    names = ["number", "raw", "text", "vector"]
    encodings = ["int", "bytes", "str", f"ndarray:float32:{WIDTH}"]
    sizes = [8, None, None, 4 * WIDTH]
    shards = []
    for part, first in enumerate(range(0, count, per_file)):
        samples = []
        for i in range(first, min(first + per_file, count)):
            raw, text = vectors(count)[i].tobytes(), texts(count)[i].encode()
            head = struct.pack("<II", len(raw), len(text))
            vector = vectors(count)[i].tobytes()
            samples.append(head + struct.pack("<q", i) + raw + text + vector)
        info = json.dumps({"format": "mds"}).encode()
        begin = 4 + 4 * (len(samples) + 1) + len(info)
        offsets = np.cumsum([begin, *map(len, samples)]).astype("<u4")
        body = struct.pack("<I", len(samples)) + offsets.tobytes() + info + b"".join(samples)
        name = f"shard.{part:05}.mds"
        (folder / name).write_bytes(body)
        shards.append(
            {
                "column_names": names,
                "column_encodings": encodings,
                "column_sizes": sizes,
                "compression": None,
                "format": "mds",
                "hashes": [],
                "raw_data": {"basename": name, "bytes": len(body), "hashes": {}},
                "samples": len(samples),
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": None,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def write_packed_mds(folder, count, suffix):
    """The same as MDSWriter leaves it with `compression`."""
    write_mds(folder, count)
    listing = json.loads((folder / "index.json").read_text())
    for shard in listing["shards"]:
        raw = folder / shard["raw_data"]["basename"]
        codec = codec_of(suffix) or "gzip"
        pack = bz2.compress if codec == "bz2" else partial(pyarrow.compress, codec=codec)
        data = bytes(pack(raw.read_bytes()))
        raw.unlink()
        raw.with_name(f"{raw.name}.{suffix}").write_bytes(data)
        shard["compression"] = suffix
        shard["zip_data"] = {"basename": f"{raw.name}.{suffix}", "bytes": len(data), "hashes": {}}
    (folder / "index.json").write_text(json.dumps(listing))


def write_images(folder, count):
    from PIL import Image

    for i in range(count):
        place = folder / ("cats" if i % 2 else "dogs")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + i % 3, 8), (i, 0, 0)).save(place / f"{i:04}.png")
