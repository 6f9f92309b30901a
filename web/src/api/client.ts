/** REST client: typed requests with a timeout, and one error type for every failure. */
import createClient from "openapi-fetch";
import type { paths } from "./schema";

/** Set in the document by the coordinator that serves the page, from its `VITE_API_URL`. */
const SERVED = globalThis.document?.querySelector<HTMLMetaElement>('meta[name="strata-api-url"]')?.content;

/** The address of the API, which ends in `/api`: from the document, else from the build, else beside the page. */
export const BASE: string = (SERVED || import.meta.env.VITE_API_URL || "/api").replace(/\/$/, "");

/** The paths of the API description begin with `/api`. */
const ROOT = BASE.replace(/\/api$/, "");

/** The address of the API with scheme and host. */
export const apiAddress = (): string => new URL(BASE, location.href).href;

const READ_TIMEOUT_MS = 15_000;
/** Verifying a checkpoint and counting the samples of a dataset read all of the data. */
const WRITE_TIMEOUT_MS = 600_000;

/** A request that the coordinator refused, or that did not reach it (`status` 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string,
    /** A shell command that solves the problem, where there is one. */
    readonly command = "",
  ) {
    super(message);
  }

  static unreachable(): ApiError {
    return new ApiError(0, "unreachable", "the coordinator cannot be reached", "Check that it runs, or start it:", "strata up");
  }

  static timeout(limitMs: number): ApiError {
    return new ApiError(0, "timeout", `the coordinator did not answer in ${limitMs / 1000} s`, "Try again in a moment.");
  }

  /** The error in the body of a response; `body` is its JSON, or anything else when it has none. */
  static refused(status: number, body: unknown): ApiError {
    const error = (body as { error?: { code: string; message: string; hint: string } } | null | undefined)?.error;
    return new ApiError(
      status,
      error?.code ?? "unknown",
      error?.message ?? `the coordinator answered with status ${status}`,
      error?.hint ?? "The coordinator's log has the reason.",
    );
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** A query string without the parameters that have no value; a list is a parameter that repeats. */
function queryText(query: object): string {
  const given = Object.entries(query).filter(
    ([, value]) => value !== undefined && value !== null && value !== "" && value !== false,
  );
  const pairs = given.flatMap(([name, value]) => [value].flat().map((each) => [name, String(each)]));
  return new URLSearchParams(pairs).toString();
}

/** The address of an endpoint: for downloads, event streams and `curl`. */
export function address(path: string, query: Query = {}): string {
  const text = queryText(query);
  return `${BASE}${path}${text ? `?${text}` : ""}`;
}

export const api = createClient<paths>({
  baseUrl: ROOT,
  credentials: "include",
  querySerializer: queryText,
  fetch: timedFetch,
});

async function timedFetch(request: Request): Promise<Response> {
  const limitMs = request.method === "GET" ? READ_TIMEOUT_MS : WRITE_TIMEOUT_MS;
  const timeout = AbortSignal.timeout(limitMs);
  try {
    return await fetch(request, { signal: AbortSignal.any([request.signal, timeout]) });
  } catch (error) {
    if (request.signal.aborted) throw error;
    throw timeout.aborted ? ApiError.timeout(limitMs) : ApiError.unreachable();
  }
}

interface Outcome<Data> {
  data?: Data;
  error?: unknown;
  response: Response;
}

/** The body of a successful response; throws an `ApiError` for any other. */
export async function bodyOf<Data>(request: Promise<Outcome<Data>>): Promise<Data> {
  const { data, error, response } = await request;
  if (!response.ok) throw ApiError.refused(response.status, error);
  return data as Data;
}

/** One page of a list, the length of the whole list, and the cursor of the next page. */
export interface Paged<Item> {
  items: Item[];
  total: number;
  next: string;
}

export async function pageOf<Item>(request: Promise<Outcome<Item[]>>): Promise<Paged<Item>> {
  const items = await bodyOf(request);
  const { headers } = (await request).response;
  return { items, total: Number(headers.get("X-Total-Count") ?? items.length), next: headers.get("X-Next-Cursor") ?? "" };
}

/** Why the coordinator refuses an event stream, which an `EventSource` does not tell; null if it accepts it. */
export async function refusalOf(streamAddress: string): Promise<ApiError | null> {
  const probe = new AbortController();
  try {
    const request = new Request(new URL(streamAddress, location.href), { credentials: "include", signal: probe.signal });
    const response = await timedFetch(request);
    return response.ok ? null : ApiError.refused(response.status, await response.json().catch(() => null));
  } catch (error) {
    return error instanceof ApiError ? error : ApiError.unreachable();
  } finally {
    probe.abort();
  }
}

/** Exchanges a token for a session cookie; returns whether the token was valid. */
export async function logIn(token: string): Promise<boolean> {
  const page = new URL(`${ROOT}/`, location.href);
  page.searchParams.set("token", token);
  return (await timedFetch(new Request(page, { credentials: "include" }))).ok;
}

/** The same request as a `curl` command. */
export function curl(path: string, query?: Query, body?: unknown): string {
  const url = new URL(address(path, query), location.href).href;
  const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;
  if (body === undefined) return `curl ${quoted(url)}`;
  const data = quoted(JSON.stringify(body));
  return `curl -X POST ${quoted(url)} -H 'Content-Type: application/json' -d ${data}`;
}
