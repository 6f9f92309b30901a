/** Asks the coordinator; whatever goes wrong becomes one kind of error that says what to do. */

/** Set in the document by the coordinator that serves the page, from its `VITE_API_URL`. */
const SERVED = globalThis.document?.querySelector<HTMLMetaElement>('meta[name="strata-api-url"]')?.content;

/** Where the API is: as the document says, else as the page was built for, else beside the page. */
export const BASE: string = (SERVED || import.meta.env.VITE_API_URL || "/api").replace(/\/$/, "");

/** The same with scheme and host, as people and terminals need it. */
export const apiAddress = (): string => new URL(BASE, location.href).href;

const READ_TIMEOUT_MS = 15_000;
/** Verifying a checkpoint and counting the samples of a dataset read all of the data. */
const WRITE_TIMEOUT_MS = 600_000;

/** A refusal of the coordinator, or that it could not be reached (`status` 0). */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly hint: string;

  constructor(status: number, code: string, message: string, hint: string) {
    super(message);
    this.status = status;
    this.code = code;
    this.hint = hint;
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** The address of an endpoint; parameters without a value are left out. */
export function address(path: string, query: Query = {}): string {
  const given = Object.entries(query).filter(
    ([, value]) => value !== undefined && value !== null && value !== "" && value !== false,
  );
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `${BASE}${path}${text ? `?${text}` : ""}`;
}

/** A list, how long it is altogether, and where it goes on. */
export interface Paged<Item> {
  items: Item[];
  total: number;
  next: string;
}

export async function get<Answer>(path: string, query?: Query, signal?: AbortSignal) {
  return (await answered(await ask(address(path, query), { signal }))) as Answer;
}

export async function list<Item>(
  path: string,
  query?: Query,
  signal?: AbortSignal,
): Promise<Paged<Item>> {
  const response = await ask(address(path, query), { signal });
  const items = (await answered(response)) as Item[];
  const total = Number(response.headers.get("X-Total-Count") ?? items.length);
  return { items, total, next: response.headers.get("X-Next-Cursor") ?? "" };
}

export const post = <Answer>(path: string, body?: unknown, query?: Query) => send<Answer>("POST", path, body, query);

export const remove = <Answer>(path: string, query?: Query) => send<Answer>("DELETE", path, undefined, query);

async function send<Answer>(method: "POST" | "DELETE", path: string, body?: unknown, query?: Query): Promise<Answer> {
  const response = await ask(address(path, query), {
    method,
    ...(body === undefined
      ? {}
      : { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }),
  });
  return (await answered(response)) as Answer;
}

/** Exchanges a token for the cookie that the API takes; tells whether it was the right one. */
export async function logIn(token: string): Promise<boolean> {
  const page = new URL(BASE.replace(/\/api$/, "/"), location.href);
  page.searchParams.set("token", token);
  return (await ask(page.href, {})).ok;
}

async function ask(url: string, options: RequestInit): Promise<Response> {
  const allowedMs = options.method ? WRITE_TIMEOUT_MS : READ_TIMEOUT_MS;
  const timeout = AbortSignal.timeout(allowedMs);
  const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
  try {
    return await fetch(url, { ...options, signal, credentials: "include" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw timeout.aborted
      ? new ApiError(0, "slow", `the coordinator did not answer in ${allowedMs / 1000} s`, "try again in a moment")
      : new ApiError(0, "gone", "the coordinator cannot be reached", "start it with: strata up");
  }
}

async function answered(response: Response): Promise<unknown> {
  const body: unknown = await response.json().catch(() => null);
  if (response.ok) return body;
  const said = (body as { error?: { code: string; message: string; hint: string } } | null)?.error;
  throw new ApiError(
    response.status,
    said?.code ?? "unknown",
    said?.message ?? `the coordinator answered ${response.status}`,
    said?.hint ?? "its log says more: strata logs",
  );
}

/** The same request as a command for a terminal. */
export function curl(path: string, query?: Query, body?: unknown): string {
  const url = new URL(address(path, query), location.href).href;
  const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;
  if (body === undefined) return `curl ${quoted(url)}`;
  const data = quoted(JSON.stringify(body));
  return `curl -X POST ${quoted(url)} -H 'Content-Type: application/json' -d ${data}`;
}
