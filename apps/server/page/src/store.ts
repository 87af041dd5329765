// Conversations, kept in IndexedDB of this browser. A conversation is a tree: editing and regenerating add siblings, nothing is lost.

import { random_id } from './dom';

/** A token of an answer: its text, natural logarithm of its probability, and the likeliest tokens in its place. */
export interface Token {
  text: string;
  logprob: number;
  top: [text: string, logprob: number][];
}
export interface Stats {
  tokens: number;
  per_second: number;
  prompt: number;
  prompt_per_second: number;
  cached: number;
}
export type Finish = 'stop' | 'length' | 'cancelled' | 'error';
export interface Message {
  id: string;
  parent: string | null;
  role: 'user' | 'assistant';
  text: string;
  created: number;
  reasoning?: string;
  tokens?: Token[];
  model?: string;
  stats?: Stats;
  finish?: Finish;
  error?: string;
}
export interface Conversation {
  id: string;
  title: string;
  named: boolean;  // by the user
  created: number;
  changed: number;
  leaf: string | null;  // the end of the path that is shown
  messages: Message[];
}

export function new_conversation(): Conversation {
  const now = Date.now();
  return { id: random_id(), title: 'New chat', named: false, created: now, changed: now, leaf: null, messages: [] };
}

export function message_by_id(conversation: Conversation, id: string | null): Message | undefined {
  return id === null ? undefined : conversation.messages.find((message) => message.id === id);
}

/** The messages from the first to the leaf. */
export function path_of(conversation: Conversation, leaf: string | null = conversation.leaf): Message[] {
  const by_id = new Map(conversation.messages.map((message) => [message.id, message]));
  const path: Message[] = [];
  for (let at = leaf; at !== null;) {
    const message = by_id.get(at);
    if (!message) break;
    by_id.delete(at);  // imported files may hold circles
    path.unshift(message);
    at = message.parent;
  }
  return path;
}

export function siblings_of(conversation: Conversation, message: Message): Message[] {
  return conversation.messages.filter((other) => other.parent === message.parent && other.role === message.role);
}

/** The newest leaf under a message. */
export function leaf_under(conversation: Conversation, message: Message): string {
  let at = message;
  for (let steps = 0; steps < conversation.messages.length; steps++) {
    const children = conversation.messages.filter((other) => other.parent === at.id);
    const last = children[children.length - 1];
    if (!last) break;
    at = last;
  }
  return at.id;
}

export function add_message(conversation: Conversation, parent: string | null, role: Message['role'], text: string): Message {
  const message: Message = { id: random_id(), parent, role, text, created: Date.now() };
  conversation.messages.push(message);
  conversation.leaf = message.id;
  conversation.changed = message.created;
  if (role === 'user' && !conversation.named && parent === null) conversation.title = title_of(text);
  return message;
}

function title_of(text: string): string {
  const line = text.trim().split('\n', 1)[0]!.replace(/^[#>*\s]+/, '').slice(0, 60);
  return line || 'New chat';
}

// --- storage ---

let database: Promise<IDBDatabase | null> | null = null;
/** Whether conversations survive a reload: some private windows have no IndexedDB. */
export let is_persistent = true;

function open(): Promise<IDBDatabase | null> {
  database ??= new Promise((resolve) => {
    const fail = () => {
      is_persistent = false;
      resolve(null);
    };
    try {
      const request = indexedDB.open('imago', 1);
      request.onupgradeneeded = () => request.result.createObjectStore('conversations', { keyPath: 'id' });
      request.onsuccess = () => resolve(request.result);
      request.onerror = fail;
      request.onblocked = fail;
    } catch {
      fail();
    }
  });
  return database;
}

async function transact<T>(mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T | null> {
  const db = await open();
  if (!db) return null;
  return new Promise((resolve, reject) => {
    const transaction = db.transaction('conversations', mode);
    const request = work(transaction.objectStore('conversations'));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error ?? request.error);
  });
}

/** Newest first. */
export async function load_all(): Promise<Conversation[]> {
  const all = (await transact('readonly', (store) => store.getAll() as IDBRequest<Conversation[]>)) ?? [];
  return all.map(read_conversation).filter((c) => c !== null).sort((a, b) => b.changed - a.changed);
}

/** Throws when the browser gives no more room. */
export async function save(conversation: Conversation): Promise<void> {
  await transact('readwrite', (store) => store.put(conversation));
}

export async function remove(id: string): Promise<void> {
  await transact('readwrite', (store) => store.delete(id));
}

// --- files ---

export function export_text(conversations: Conversation[]): string {
  return JSON.stringify({ format: 'imago conversations', version: 1, conversations });
}

/** Throws Error with a message for the user. */
export function import_text(text: string): Conversation[] {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error('The file is not JSON.');
  }
  const list = (data as { conversations?: unknown } | null)?.conversations;
  if (!Array.isArray(list)) throw new Error('The file holds no conversations.');
  return list.map((item, i) => {
    const conversation = read_conversation(item);
    if (!conversation) throw new Error(`Conversation ${i + 1} of the file is damaged.`);
    return conversation;
  });
}

const text_or = <T>(value: unknown, other: T) => (typeof value === 'string' ? value : other);
const number_or = (value: unknown, other: number) => (typeof value === 'number' && Number.isFinite(value) ? value : other);

function read_conversation(data: unknown): Conversation | null {
  const c = data as Partial<Conversation> | null;
  if (typeof c?.id !== 'string' || !Array.isArray(c.messages)) return null;
  const messages: Message[] = [];
  for (const item of c.messages as unknown[]) {
    const message = read_message(item);
    if (!message) return null;
    messages.push(message);
  }
  return {
    id: c.id, title: text_or(c.title, 'Untitled').slice(0, 200), named: c.named === true, created: number_or(c.created, Date.now()),
    changed: number_or(c.changed, Date.now()), leaf: text_or(c.leaf, null), messages,
  };
}

function read_message(data: unknown): Message | null {
  const m = data as Partial<Message> | null;
  if (typeof m?.id !== 'string' || typeof m.text !== 'string' || (m.role !== 'user' && m.role !== 'assistant')) return null;
  const message: Message = { id: m.id, parent: text_or(m.parent, null), role: m.role, text: m.text, created: number_or(m.created, 0) };
  if (typeof m.reasoning === 'string') message.reasoning = m.reasoning;
  if (typeof m.model === 'string') message.model = m.model;
  if (typeof m.error === 'string') message.error = m.error;
  if (['stop', 'length', 'cancelled', 'error'].includes(m.finish ?? '')) message.finish = m.finish!;
  else if (m.role === 'assistant') message.finish = 'cancelled';  // the page was closed meanwhile
  if (m.stats && typeof m.stats === 'object') {
    const s = m.stats as Partial<Stats>;
    message.stats = {
      tokens: number_or(s.tokens, NaN), per_second: number_or(s.per_second, NaN), prompt: number_or(s.prompt, NaN),
      prompt_per_second: number_or(s.prompt_per_second, NaN), cached: number_or(s.cached, NaN),
    };
  }
  if (Array.isArray(m.tokens)) {
    message.tokens = (m.tokens as Partial<Token>[]).filter((t) => typeof t?.text === 'string').map((t) => ({
      text: t.text!, logprob: number_or(t.logprob, 0),
      top: (Array.isArray(t.top) ? t.top : []).filter((pair) => Array.isArray(pair) && typeof pair[0] === 'string')
        .map((pair): [string, number] => [pair[0], number_or(pair[1], -99)]),
    }));
  }
  return message;
}
