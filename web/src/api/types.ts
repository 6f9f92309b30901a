/** Short names for the types that are generated from the API description. */
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Alert = Schemas["AlertResponse"];
export type Agent = Schemas["AgentResponse"];
export type Attention = Schemas["Attention"];
export type Barrier = Schemas["BarrierResponse"];
export type Checkpoint = Schemas["CheckpointResponse"];
export type CheckpointDetail = Schemas["CheckpointDetail"];
export type CreateTask = Schemas["CreateTaskRequest"];
export type Dashboard = Schemas["DashboardResponse"];
export type Dataset = Schemas["DatasetResponse"];
export type Fact = Schemas["FactResponse"];
/** The request that continues a task has the same fields except `step` and `name`. */
export type ForkTask = Schemas["ForkTaskRequest"];
export type History = Schemas["MetricsHistory"];
/** The API description calls fields with a default optional; the coordinator always sends them. */
export type GpuHealth = Required<Schemas["GpuHealthResponse"]>;
export type HostGpu = Schemas["HostGpuResponse"];
export type HostHealth = Required<Omit<Schemas["HostHealthResponse"], "gpus">> & { gpus: GpuHealth[] };
export type Host = Omit<Schemas["HostResponse"], "health"> & { health: HostHealth | null };
export type LogEntry = Schemas["LogEntry"];
export type Metrics = Schemas["MetricsSnapshot"];
export type Patch = Omit<Schemas["LivePatch"], "reset" | "hosts"> & { reset?: boolean; hosts?: Host[] };
/** Fields with a default may be left out. */
export type RegisterDataset = Partial<Schemas["RegisterDatasetRequest"]>;
export type ResizeAnswer = Schemas["ResizeTaskResponse"];
export type Sample = Schemas["Sample"];
export type SettingsAnswer = Schemas["SettingsResponse"];
export type Shard = Schemas["ShardResponse"];
export type Status = Schemas["StatusResponse"];
export type Task = Schemas["TaskResponse"];
export type TaskDetail = Schemas["TaskDetail"];
export type Totals = Schemas["Totals"];
export type Verified = Schemas["VerifiedResponse"];
export type Worker = Schemas["WorkerResponse"];

export type WorkerStatus = Worker["status"];
export type TaskStatus = Task["status"];
