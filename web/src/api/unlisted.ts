/** Requests and fields that the API description does not list yet; `schema.ts` replaces each once it has it. */

interface Post<Path, Query, Body, Answer> {
  parameters: { query?: Query; header?: never; path: Path; cookie?: never };
  requestBody: { content: { "application/json": Body } };
  responses: { 200: { headers: Record<string, unknown>; content: { "application/json": Answer } } };
}

type Delete<Path, Query, Answer> = Omit<Post<Path, Query, never, Answer>, "requestBody"> & { requestBody?: never };

/** Workers that were wanted before and are wanted now; `waiting` of them have no slot yet. */
export interface ResizeAnswer {
  task_id: string;
  before: number;
  after: number;
  placed: number;
  waiting: number;
  waiting_for: string;
  changed: boolean;
  min_workers: number;
}

interface PinAnswer {
  id: string;
  task_id: string;
  kept_because: string[];
}

export interface UnlistedPaths {
  "/api/tasks/{task_id}/resize": {
    post: Post<{ task_id: string }, never, { worker_count: number; min_workers: number }, ResizeAnswer>;
  };
  "/api/checkpoints/{checkpoint_id}/pin": {
    post: Post<{ checkpoint_id: string }, { task_id: string }, { note: string }, PinAnswer>;
    delete: Delete<{ checkpoint_id: string }, { task_id: string }, PinAnswer>;
  };
}

/** Why a checkpoint is kept, and the last metrics that its script had logged. */
export interface UnlistedCheckpointFields {
  kept_because?: string[];
  metrics?: Record<string, number>;
}

/** Whether a task has between `min_workers` and `worker_count` workers, as slots are free. */
export interface UnlistedTaskFields {
  elastic?: boolean;
}
