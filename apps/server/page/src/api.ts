// Requests to the server: key, errors, whether it answers at all.

import { Signal } from './dom';
import { ask_key } from './dialogs';

export interface ModelMeta {
  type?: string;
  bytes?: number;
  parameters?: number;
  context?: number;
  architecture?: string;
  loaded?: boolean;
  chat?: boolean;  // whether it has a template for conversations
}
export interface Model {
  id: string;
  meta?: ModelMeta;
}

/** The server answered with an error. */
export class ApiError extends Error {
  constructor(message: string, readonly status: number) {
    super(message);
  }
}
/** The server did not answer, or stopped in the middle. */
export class ConnectionError extends Error {}

export const online = new Signal(true);
export const models = new Signal<Model[]>([]);

const kKey = 'imago.key';
let key = sessionStorage.getItem(kKey) ?? localStorage.getItem(kKey) ?? '';
let asking: Promise<boolean> | null = null;

async function renew_key(used: string): Promise<boolean> {
  if (used !== key) return true;  // another request asked meanwhile
  asking ??= ask_key(key !== '')
    .then((answer) => {
      if (!answer) return false;
      key = answer.key;
      sessionStorage.setItem(kKey, key);
      if (answer.remember) localStorage.setItem(kKey, key);
      else localStorage.removeItem(kKey);
      return true;
    })
    .finally(() => (asking = null));
  return asking;
}

async function error_of(response: Response): Promise<ApiError> {
  let message = '';
  try {
    message = message_of(await response.json());
  } catch { /* not JSON */ }
  return new ApiError(message || `The server answered with status ${response.status}.`, response.status);
}

/** The message in `{"error": {"message": …}}`, or "". */
export function message_of(reply: unknown): string {
  const error = (reply as { error?: unknown } | null)?.error;
  if (typeof error === 'string') return error;
  const message = (error as { message?: unknown } | undefined)?.message;
  return typeof message === 'string' ? message : error ? 'The server reported an error.' : '';
}

/** Asks for the key when the server wants one, unless `quiet`. Throws ApiError, ConnectionError, or AbortError of `signal`. */
export async function request(path: string, body?: unknown, signal?: AbortSignal, quiet = false): Promise<Response> {
  for (;;) {
    const used = key;
    const headers: Record<string, string> = {};
    if (used) headers['Authorization'] = `Bearer ${used}`;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    let response: Response;
    try {
      response = await fetch(path, {
        method: body === undefined ? 'GET' : 'POST', headers, cache: 'no-store',
        body: body === undefined ? null : JSON.stringify(body), signal: signal ?? null,
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      online.set(false);
      throw new ConnectionError('The server does not answer.');
    }
    online.set(true);
    if (response.ok) return response;
    if (response.status === 401 && !quiet && (await renew_key(used))) continue;
    throw await error_of(response);
  }
}

export async function request_json<T>(path: string, body?: unknown, signal?: AbortSignal, quiet = false): Promise<T> {
  const response = await request(path, body, signal, quiet);
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ConnectionError('The answer of the server is not JSON.');
  }
}

/** The data of each event of a stream. Throws ConnectionError when it breaks off. */
export async function* events(response: Response, signal: AbortSignal): AsyncGenerator<string> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const lines = rest.split(/\r?\n/);
      rest = lines.pop() ?? '';
      for (const line of lines) if (line.startsWith('data:')) yield line.slice(5).trim();
    }
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ConnectionError('The connection broke off in the middle of the answer.');
  } finally {
    reader.cancel().catch(() => {});
  }
}

export async function load_models(quiet = false): Promise<void> {
  const reply = await request_json<{ data?: Model[] }>('/v1/models', undefined, undefined, quiet);
  const list = (reply.data ?? []).filter((model) => typeof model.id === 'string');
  if (JSON.stringify(list) !== JSON.stringify(models.get())) models.set(list);
}

/** What is known of a model; of NAME@TYPE that is not loaded, what NAME is but for size and type. */
export function meta_of(id: string): ModelMeta | undefined {
  const find = (name: string) => models.get().find((model) => model.id === name)?.meta;
  const exact = find(id);
  if (exact?.loaded || !id.includes('@')) return exact;
  const { type, bytes, ...rest } = find(id.slice(0, id.lastIndexOf('@'))) ?? {};
  return rest;
}

/** Whether the server has no such endpoint. */
export function is_absent(error: unknown): boolean {
  return error instanceof ApiError && [404, 405, 501].includes(error.status);
}

export function text_of(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

// While the server is away it is asked every two seconds, and otherwise seldom: a page that lies open should notice
// a restart before someone types into it.
let timer = 0;
export function keep_watch(): void {
  const check = async () => {
    if (!document.hidden && !asking) await load_models(true).catch(() => {});
    schedule();
  };
  const schedule = () => {
    clearTimeout(timer);
    timer = setTimeout(check, online.get() ? 15_000 : 2_000);
  };
  online.watch(schedule);
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden && !online.get()) check();
  });
}
