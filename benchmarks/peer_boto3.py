"""Run by bench_storage.py in boto3's own environment: the same bytes by its default transfers.

    python peer_boto3.py ENDPOINT REGION KEY SECRET BUCKET MIB

For each line on stdin, `put` or `get`, it does that once and prints JSON: seconds by the clock and
of CPU. Imports nothing of Strata.
"""

import io
import json
import os
import sys
import time

import boto3


def main():
    endpoint, region, key, secret, bucket, mib = sys.argv[1:]
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
    )
    data = os.urandom(int(mib) * 2**20)
    work = {
        "put": lambda: client.upload_fileobj(io.BytesIO(data), bucket, "boto3"),
        "get": lambda: client.download_fileobj(bucket, "boto3", io.BytesIO()),
    }
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        work[line.strip()]()
        took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
