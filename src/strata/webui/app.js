// The page: everything once from /api/dashboard, then again whenever the stream tells of a change.
// Text from the cluster is only ever set as text, never as markup.

const REFRESH_MS = 1000; // at most this often, however much happens
const IDLE_REFRESH_MS = 5000; // figures move even when no fact is recorded
const HIDDEN_REFRESH_MS = 30000;
const RETRY_MS = 2000;
const FACTS_SHOWN = 100;
const FACTS_AT_START = 30;

const byId = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const TONES = {
  active: "good", running: "good", completed: "good", released: "good", connected: "good",
  checkpointing: "busy", recovering: "busy", in_progress: "busy", waiting: "busy",
  starting: "busy", stopping: "busy", queued: "busy", reconnecting: "busy",
  failed: "bad",
};

const badge = (status) =>
  element("span", `badge ${TONES[status] ?? ""}`, status.replaceAll("_", " "));

function bytes(count) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  for (; count >= 1000 && at < units.length - 1; at += 1) count /= 1000;
  return `${at ? count.toFixed(1) : count} ${units[at]}`;
}

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds / 3600) % 24} h`;
}

const ago = (ms) => `${duration(Math.max(0, (Date.now() - ms) / 1000))} ago`;
const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
const number = (value, digits = 1) =>
  value === null ? "–" : value.toLocaleString(undefined, { maximumFractionDigits: digits });

function table(id, columns, rows, none) {
  const head = element("tr");
  for (const [title, , kind] of columns) head.append(element("th", kind, title));
  const body = rows.map((row) => {
    const line = element("tr");
    for (const [, value, kind] of columns) {
      const cell = element("td", kind);
      cell.append(value(row));
      line.append(cell);
    }
    return line;
  });
  if (!rows.length) {
    const cell = element("td", "empty", none);
    cell.colSpan = columns.length;
    body.push(element("tr"));
    body[0].append(cell);
  }
  byId(id).replaceChildren(head, ...body);
}

function total(id, shown, count) {
  byId(`${id}-total`).textContent = shown < count ? `${shown} of ${number(count)}` : number(count);
}

function progress(task) {
  if (task.progress === null) return `${number(task.committed_steps)} steps`;
  const bar = element("progress");
  bar.max = 100;
  bar.value = task.progress;
  const both = element("span");
  both.append(bar, ` ${number(task.progress)} %`);
  return both;
}

function missing(barrier) {
  const rest = barrier.missing_total - barrier.missing.length;
  return barrier.missing.join(", ") + (rest > 0 ? ` and ${number(rest)} more` : "");
}

const WORKERS = [
  ["Worker", (w) => w.id],
  ["Status", (w) => badge(w.status)],
  ["Task", (w) => w.current_task],
  ["Rank", (w) => (w.rank < 0 ? "–" : w.rank), "number"],
  ["Epoch", (w) => number(w.current_epoch), "number"],
  ["Step", (w) => number(w.current_step), "number"],
  ["Shards", (w) => number(w.assigned_shards), "number"],
  ["GPUs", (w) => w.gpu_count, "number"],
  ["CPU", (w) => (w.resources ? `${number(w.resources.cpu_percent, 0)} %` : "–"), "number"],
  ["Memory", (w) => (w.resources ? bytes(w.resources.memory_used_bytes) : "–"), "number"],
  ["Last beat", (w) => ago(w.last_heartbeat)],
  ["Why", (w) => w.reason],
];
const TASKS = [
  ["Task", (t) => t.id],
  ["Status", (t) => badge(t.status)],
  ["Progress", progress],
  ["Workers", (t) => `${t.worker_ids_total} of ${t.worker_count}`, "number"],
  ["Dataset", (t) => t.dataset_id || "–"],
  ["Submitted", (t) => ago(t.submitted_at)],
  ["Why", (t) => t.reason],
];
const CHECKPOINTS = [
  ["Checkpoint", (c) => c.id],
  ["Status", (c) => badge(c.status)],
  ["Step", (c) => number(c.step), "number"],
  ["Size", (c) => bytes(c.size), "number"],
  ["Task", (c) => c.task_id],
  ["Begun", (c) => ago(c.created_at)],
];
const BARRIERS = [
  ["Barrier", (b) => b.name],
  ["Status", (b) => badge(b.status)],
  ["Arrived", (b) => `${b.arrived} of ${b.total}`, "number"],
  ["Task", (b) => b.task_id],
  ["Missing", missing],
];

function showFigures(metrics) {
  const figures = [
    [`${number(metrics.active_workers)} of ${number(metrics.total_workers)}`, "workers active"],
    [`${number(metrics.checkpoint_throughput)} MB/s`, "checkpoint throughput"],
    [number(metrics.coordinator_rps), "requests per second"],
    [`${number(metrics.barrier_latency_p99)} ms`, "barrier p99"],
    [`${number(metrics.shard_assignment_time, 2)} ms`, "shard assignment"],
  ];
  byId("figures").replaceChildren(
    ...figures.map(([value, name]) => {
      const figure = element("div", "figure");
      figure.append(element("b", "", value), element("span", "", name));
      return figure;
    }),
  );
}

function line(ms, who, what, tone) {
  const item = element("li");
  item.append(
    element("time", "", clock(ms)),
    element("span", "who", who),
    element("span", `what ${tone}`, what),
  );
  return item;
}

const LOG_TONES = { error: "bad", warn: "busy", debug: "quiet" };

function show(state) {
  const coordinator = state.coordinator;
  byId("where").textContent =
    `${coordinator.address} · ${coordinator.version}` +
    `${coordinator.mode === "demo" ? " · demo: simulated data" : ""}` +
    ` · up ${duration(coordinator.uptime)}`;
  byId("position").textContent = `${number(coordinator.position)} recorded`;
  showFigures(state.metrics);
  byId("statuses").replaceChildren(
    ...Object.entries(state.totals.workers_by_status)
      .filter(([, count]) => count)
      .map(([status, count]) => {
        const shown = badge(status);
        shown.textContent = `${number(count)} ${status}`;
        return shown;
      }),
  );
  table("workers", WORKERS, state.workers, "No worker has joined yet.");
  table("tasks", TASKS, state.tasks, "Nothing was submitted yet.");
  table("checkpoints", CHECKPOINTS, state.checkpoints, "Nothing was saved yet.");
  table("barriers", BARRIERS, state.barriers, "Nobody waits.");
  for (const id of ["workers", "tasks", "checkpoints", "barriers"]) {
    total(id, state[id].length, state.totals[id]);
  }
  byId("logs").replaceChildren(
    ...state.logs.map((entry) =>
      line(entry.timestamp, entry.worker_id || entry.source, entry.message,
        LOG_TONES[entry.level] ?? ""),
    ),
  );
}

const BAD_FACTS = new Set(["WorkerLost", "WorkerRejected", "BarrierFailed", "CheckpointFailed",
  "AgentLost", "RolledBack", "LimitHit"]);

function showFact(fact) {
  const { reason, ...rest } = fact.fields;
  const subject = ["task", "worker", "checkpoint", "barrier", "dataset", "agent"]
    .map((name) => rest[name]).filter(Boolean).join(" ");
  const what = `${fact.kind} ${subject}${reason ? `: ${reason}` : ""}`;
  const facts = byId("facts");
  facts.prepend(line(fact.time, fact.id, what, BAD_FACTS.has(fact.kind) ? "bad" : ""));
  while (facts.children.length > FACTS_SHOWN) facts.lastChild.remove();
}

function connection(status) {
  const shown = byId("connection");
  shown.textContent = status;
  shown.className = `badge ${TONES[status] ?? ""}`;
}

async function ask(path) {
  const answer = await fetch(path);
  byId("locked").hidden = answer.status !== 401;
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

let stale = false;
let wake = () => {};

function changed() {
  stale = true;
  wake();
}

async function untilChanged(ms) {
  if (!stale) await new Promise((done) => { wake = done; setTimeout(done, ms); });
  stale = false;
}

async function keepFresh() {
  for (;;) {
    await pause(REFRESH_MS);
    await untilChanged(document.hidden ? HIDDEN_REFRESH_MS : IDLE_REFRESH_MS);
    try {
      show(await ask("/api/dashboard"));
      connection("connected");
    } catch {
      connection("reconnecting");
    }
  }
}

function follow(position) {
  const stream = new EventSource(`/api/stream?position=${position}`);
  byId("facts").replaceChildren();
  stream.onopen = changed;
  stream.onmessage = (message) => {
    showFact(JSON.parse(message.data));
    changed();
  };
  stream.onerror = () => {
    connection("reconnecting");
    // The browser retries a broken connection by itself, but not one that was refused.
    if (stream.readyState === EventSource.CLOSED) start();
  };
}

async function start() {
  for (;;) {
    try {
      const state = await ask("/api/dashboard");
      show(state);
      connection("connected");
      follow(Math.max(0, state.coordinator.position - FACTS_AT_START));
      return;
    } catch {
      connection("reconnecting");
      await pause(RETRY_MS);
    }
  }
}

start();
keepFresh();
