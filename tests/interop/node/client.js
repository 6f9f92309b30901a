// Two workers made from the proto alone. What they were answered goes out as one JSON object.
//
//     node client.js ADDRESS PROTO
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

import { healthAndReflection } from "./standard.js";

const [address, proto] = process.argv.slice(2);
const OPTIONS = { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true };
const { Coordinator } = grpc.loadPackageDefinition(loader.loadSync(proto, OPTIONS)).strata.v1;
const coordinator = new Coordinator(address, grpc.credentials.createInsecure());

function ask(client, method, request) {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + 20_000;
    client[method](request, { deadline }, (error, answer) =>
      error ? reject(error) : resolve(answer),
    );
  });
}

const call = (method, request) => ask(coordinator, method, request);

class Session {
  constructor(worker, incarnation) {
    this.stream = coordinator.Session();
    this.messages = this.stream[Symbol.asyncIterator]();
    this.send({ hello: { worker_id: worker, incarnation } });
  }

  send(message) {
    this.stream.write(message);
  }

  async next(kind) {
    for (;;) {
      const { value, done } = await this.messages.next();
      if (done) throw new Error(`the session ended without ${kind}`);
      if (value.body === kind) return { request: value.request, ...value[kind] };
    }
  }

  async close() {
    this.stream.end();
    while (!(await this.messages.next()).done);
  }
}

async function shards(worker) {
  const answer = await call("GetDataShards", { worker_id: worker, dataset_id: "numbers" });
  return answer.shards.map((shard) => [shard.start_index, shard.end_index]);
}

async function refusal(method, request) {
  try {
    await call(method, request);
  } catch (error) {
    const [code] = error.metadata.get("strata-code");
    const [hint] = error.metadata.get("strata-hint");
    return { status: grpc.status[error.code], code, hint, details: error.details };
  }
  throw new Error(`${method} was not refused`);
}

async function meet(session) {
  session.send({ request: 7, arrive: { barrier_id: "here", step: 3, arrival: 1 } });
  const [first, second] = await Promise.all([
    session.next("barrier"),
    call("WaitBarrier", { worker_id: "js-2", barrier_id: "here", step: 3 }),
  ]);
  return [first, second];
}

async function speak(registered) {
  const session = new Session("js-1", registered.incarnation);
  const standing = await session.next("standing");
  session.send({ request: 5, beat: { state: "WORKER_STATE_TRAINING", step: 3, sent_mono_ns: 11 } });
  const pulse = await session.next("pulse");
  session.send({
    request: 6,
    events: {
      first_seq: 0, count: 2, wall_from_ns: 1, wall_to_ns: 2,
      kinds: ["Stepped"], payload: Buffer.from("opaque"),
    },
  });
  const stored = await session.next("stored");
  const barrier = await meet(session);
  session.send({ request: 8, leave: { outcome: "done" } });
  const done = await session.next("done");
  await session.close();
  return { standing, pulse, stored, barrier, done };
}

const found = await healthAndReflection(address, ask);
found.registered = await call("RegisterWorker", { worker_id: "js-1", hostname: "node" });
found.second = await call("RegisterWorker", { worker_id: "js-2", hostname: "node" });
found.beat = await call("Heartbeat", { worker_id: "js-2", state: "WORKER_STATE_IDLE" });
found.dataset = await call("RegisterDataset", {
  dataset_id: "numbers", total_samples: 105, shard_size: 10, shuffle: true, seed: 1,
});
found.shards = [await shards("js-1"), await shards("js-2")];
found.refusal = await refusal("Heartbeat", { worker_id: "nobody" });
found.session = await speak(found.registered);
found.left = await call("DeregisterWorker", { worker_id: "js-2" });
console.log(JSON.stringify(found));
coordinator.close();
